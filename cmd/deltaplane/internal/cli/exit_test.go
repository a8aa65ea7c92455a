package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOnlyAnInterruptIsSuccess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code int
	}{
		{fmt.Errorf("a: %w", context.Canceled), ExitOK},
		{errors.Join(fmt.Errorf("a: %w", context.Canceled), errors.Join(context.Canceled)), ExitOK},
		{errors.Join(errors.New("real"), context.Canceled), ExitFailure},
		{errors.Join(context.Canceled, &UsageError{errors.New("real")}), ExitUsage},
	} {
		if got := ExitCode(c.err); got != c.code {
			t.Errorf("%q: exit code %d, want %d", c.err, got, c.code)
		}
	}
}

func TestEveryFaultIsTold(t *testing.T) {
	t.Parallel()
	away := status.Error(codes.Unavailable, "max retries exhausted: failed after 3 attempts: it is away")
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.Join(fmt.Errorf("list: %w", away), errors.New("node-1 may still be stopped")), "list: it is away\nnode-1 may still be stopped"},
		{fmt.Errorf("get %w of %w", errors.New("this"), errors.New("that")), "get this of that"},
	} {
		if got := Message(c.err); got != c.want {
			t.Errorf("%q is shown as %q, want %q", c.err, got, c.want)
		}
	}
}
