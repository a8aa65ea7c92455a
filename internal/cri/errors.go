package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrVersion says that what answers at the endpoint does not serve the CRI in its version v1.
var ErrVersion = errors.New("cri: the runtime does not serve the API runtime.v1")

// Version is what a runtime says of itself.
type Version struct{ Name, Version, API string }

// Check asks the runtime for its version. A runtime that is not there is an error that
// [IsUnavailable] knows; one without the API v1 (too old, or its CRI plugin is switched off) is
// [ErrVersion].
func (c *Client) Check(ctx context.Context) (Version, error) {
	r, err := c.Version(ctx, &runtimeapi.VersionRequest{Version: "0.1.0"})
	if IsUnimplemented(err) {
		return Version{}, fmt.Errorf("%w: it is too old, or its CRI plugin is disabled: %s", ErrVersion, Message(err))
	}
	if err != nil {
		return Version{}, fmt.Errorf("ask the runtime for its version: %w", err)
	}
	if r.GetRuntimeName() == "" || r.GetRuntimeVersion() == "" || r.GetRuntimeApiVersion() == "" {
		return Version{}, fmt.Errorf("%w: its answer to Version is not complete: %q", ErrVersion, r.String())
	}
	return Version{Name: r.GetRuntimeName(), Version: r.GetRuntimeVersion(), API: r.GetRuntimeApiVersion()}, nil
}

// IsNotFound reports that the container, sandbox or image does not exist.
func IsNotFound(err error) bool { return is(err, codes.NotFound) }

// IsUnavailable reports that the runtime could not be reached.
func IsUnavailable(err error) bool { return is(err, codes.Unavailable) }

// IsUnimplemented reports that the runtime does not know the call.
func IsUnimplemented(err error) bool { return is(err, codes.Unimplemented) }

// IsTimeout reports that the call, or the command that it runs, took longer than it may.
func IsTimeout(err error) bool { return is(err, codes.DeadlineExceeded) }

// IsLost reports that a call may have been carried out although it failed: the answer did not come.
func IsLost(err error) bool {
	return is(err, codes.Unavailable) || is(err, codes.DeadlineExceeded) || is(err, codes.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Message is an error's text for people: what the runtime said, without gRPC's own words around it.
func Message(err error) string {
	if err == nil {
		return ""
	}
	if s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return s.GRPCStatus().Message()
	}
	return err.Error()
}

func is(err error, code codes.Code) bool { return err != nil && status.Code(err) == code }
