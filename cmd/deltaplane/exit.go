package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// The exit codes of every command; `deltaplane --help` lists them.
const (
	exitOK = iota
	exitFailure
	exitUsage
	exitNotFound
	exitUnavailable
	exitRefused
)

// usageError marks a fault of the command line or the settings.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exitCode is the process's exit code for the error a command ended with.
func exitCode(err error) int {
	if err == nil || errors.Is(err, context.Canceled) {
		return exitOK
	}
	if _, ok := errors.AsType[*usageError](err); ok || strings.HasPrefix(err.Error(), "unknown command") {
		return exitUsage
	}
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return exitUnavailable
	}
	if s, ok := errors.AsType[*kube.StatusError](err); ok {
		switch {
		case s.Code == 404:
			return exitNotFound
		case s.Code == 409 || s.Code == 403 || s.Code == 422:
			return exitRefused
		case s.Code >= 500 || s.Code == 429:
			return exitUnavailable
		}
		return exitFailure
	}
	switch rpc.Code(err) {
	case codes.NotFound:
		return exitNotFound
	case codes.Unavailable, codes.DeadlineExceeded:
		return exitUnavailable
	case codes.InvalidArgument:
		return exitUsage
	case codes.FailedPrecondition, codes.Aborted, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated:
		return exitRefused
	}
	return exitFailure
}

// message is what a person should read of an error: for a status its text, reason and field faults, not its Go form.
func message(err error) string {
	var grpcStatus interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &grpcStatus) {
		return err.Error()
	}
	text := grpcStatus.GRPCStatus().Message()
	if at, _, found := strings.Cut(err.Error(), "rpc error:"); found {
		text = at + text
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
