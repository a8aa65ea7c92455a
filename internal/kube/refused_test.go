package kube_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestRefusalsAreToldFromUnknownOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want []error
		not  []error
	}{
		{"terminating namespace", &kube.StatusError{Code: 403, Reason: "Forbidden", Causes: []kube.Cause{{Reason: "NamespaceTerminating"}}}, []error{kube.ErrRefused, kube.ErrTerminating}, nil},
		{"over quota", &kube.StatusError{Code: 403, Reason: "Forbidden"}, []error{kube.ErrRefused}, []error{kube.ErrTerminating}},
		{"too many requests", &kube.StatusError{Code: 429, Reason: "TooManyRequests"}, []error{kube.ErrRefused}, nil},
		{"server timeout", &kube.StatusError{Code: 504, Reason: "Timeout"}, nil, []error{kube.ErrRefused}},
		{"invalid", &kube.StatusError{Code: 422, Reason: "Invalid"}, []error{kube.ErrRefused, kube.ErrInvalid}, []error{kube.ErrTerminating}},
		{"not found", &kube.StatusError{Code: 404}, []error{kube.ErrNotFound}, []error{kube.ErrRefused}},
		{"conflict", &kube.StatusError{Code: 409, Reason: "Conflict"}, []error{kube.ErrConflict}, []error{kube.ErrRefused, kube.ErrAlreadyExists}},
		{"already exists", &kube.StatusError{Code: 409, Reason: "AlreadyExists"}, []error{kube.ErrAlreadyExists}, []error{kube.ErrRefused, kube.ErrConflict}},
		{"internal", &kube.StatusError{Code: 500, Reason: "InternalError"}, nil, []error{kube.ErrRefused}},
		{"connection cut", errors.New("EOF"), nil, []error{kube.ErrRefused, kube.ErrNotFound}},
	} {
		got := fmt.Errorf("create pod: %w", c.err)
		for _, want := range c.want {
			if !errors.Is(got, want) {
				t.Errorf("%s: %v, want %v", c.name, got, want)
			}
		}
		for _, not := range c.not {
			if errors.Is(got, not) {
				t.Errorf("%s: %v must not be %v", c.name, got, not)
			}
		}
		if unresolved := len(c.want) == 0; kube.IsUnresolved(got) != unresolved {
			t.Errorf("%s: unresolved %v, want %v", c.name, !unresolved, unresolved)
		}
	}
}
