package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// The exit codes of every command; `deltaplane --help` lists them.
const (
	ExitOK = iota
	ExitFailure
	ExitUsage
	ExitNotFound
	ExitUnavailable
	ExitRefused
)

// UsageError marks a fault of the command line or the settings.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// ErrRefused is what an error is that ends a command with the exit code of refusals.
var ErrRefused = errors.New("refused")

// HintError adds to a fault what may help.
type HintError struct {
	Err  error
	Hint string
}

func (e *HintError) Error() string { return e.Err.Error() }
func (e *HintError) Unwrap() error { return e.Err }

// What gRPC says about its own doings, before and around what happened.
var (
	retried = regexp.MustCompile(`max retries exhausted: failed after \d+ attempts: `)
	dialled = regexp.MustCompile(`connection error: desc = "transport: Error while dialing: ([^"]*)"`)
)

// ExitCode is the process's exit code for the error a command ended with.
func ExitCode(err error) int {
	if err == nil || Cancelled(err) {
		return ExitOK
	}
	if _, ok := errors.AsType[*UsageError](err); ok || strings.HasPrefix(err.Error(), "unknown command") {
		return ExitUsage
	}
	if _, ok := errors.AsType[*UnreachableError](err); ok {
		return ExitUnavailable
	}
	if s, ok := errors.AsType[*kube.StatusError](err); ok {
		switch {
		case s.Code == 404:
			return ExitNotFound
		case s.Code == 409 || s.Code == 403 || s.Code == 422:
			return ExitRefused
		case s.Code >= 500 || s.Code == 429:
			return ExitUnavailable
		}
		return ExitFailure
	}
	for _, rejected := range []error{engine.ErrDenied, engine.ErrUnsuitable, engine.ErrEviction} {
		if errors.Is(err, rejected) {
			return ExitRefused
		}
	}
	if errors.Is(err, ErrRefused) {
		return ExitRefused
	}
	if errors.Is(err, kube.ErrNotServed) {
		return ExitNotFound
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return ExitUnavailable
	}
	switch rpc.Code(err) {
	case codes.NotFound:
		return ExitNotFound
	case codes.Unavailable, codes.DeadlineExceeded:
		return ExitUnavailable
	case codes.InvalidArgument:
		return ExitUsage
	case codes.FailedPrecondition, codes.Aborted, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated:
		return ExitRefused
	}
	return ExitFailure
}

// Cancelled reports that err says nothing but that the context ended, also where several errors are
// joined.
func Cancelled(err error) bool {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			if !Cancelled(sub) {
				return false
			}
		}
		return len(e.Unwrap()) > 0
	case interface{ Unwrap() error }:
		return Cancelled(e.Unwrap())
	}
	return err == context.Canceled //nolint:errorlint // see above
}

// ListenFlag begins the message of an error about an address that cannot be listened on with the
// flag that names it.
func ListenFlag(flags *pflag.FlagSet, err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "listen" || op.Addr == nil {
		return ""
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "listen" && !strings.HasSuffix(f.Name, "-listen") {
			return
		}
		if addr, err := net.ResolveTCPAddr("tcp", f.Value.String()); err == nil && addr.String() == op.Addr.String() {
			names = append(names, "--"+f.Name)
		}
	})
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, ", ") + ": "
}

// Message is what a person should read of an error: for a status its text, reason and field faults,
// not its Go form.
func Message(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && errors.Join(joined.Unwrap()...).Error() == err.Error() {
		var lines []string
		for _, sub := range joined.Unwrap() {
			lines = append(lines, Message(sub))
		}
		return strings.Join(lines, "\n")
	}
	if h, ok := errors.AsType[*HintError](err); ok {
		return Message(h.Err) + "\n" + h.Hint
	}
	var grpcStatus interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &grpcStatus) {
		return err.Error()
	}
	text := retried.ReplaceAllString(grpcStatus.GRPCStatus().Message(), "")
	text = dialled.ReplaceAllString(text, "cannot connect: $1")
	if at, _, found := strings.Cut(err.Error(), "rpc error:"); found {
		text = retried.ReplaceAllString(at, "") + text
	}
	if reason := rpc.Reason(err); reason != "" {
		text += " (" + reason + ")"
	}
	violations := rpc.Violations(err)
	for _, field := range slices.Sorted(maps.Keys(violations)) {
		if !strings.Contains(text, violations[field]) {
			text += fmt.Sprintf("\n  %s: %s", field, violations[field])
		}
	}
	return text
}
