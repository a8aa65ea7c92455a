package main

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

// hintError adds to a fault what may help.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// What gRPC says about its own doings, before and around what happened.
var (
	retried = regexp.MustCompile(`max retries exhausted: failed after \d+ attempts: `)
	dialled = regexp.MustCompile(`connection error: desc = "transport: Error while dialing: ([^"]*)"`)
)

// exitCode is the process's exit code for the error a command ended with.
func exitCode(err error) int {
	if err == nil || cancelled(err) {
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
	for _, unfit := range []error{engine.ErrDenied, engine.ErrUnfit, engine.ErrEviction} {
		if errors.Is(err, unfit) {
			return exitRefused
		}
	}
	if errors.Is(err, kube.ErrNotServed) {
		return exitNotFound
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return exitUnavailable
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

// cancelled reports that err says nothing but that the context ended, also where several errors are joined.
func cancelled(err error) bool {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			if !cancelled(sub) {
				return false
			}
		}
		return len(e.Unwrap()) > 0
	case interface{ Unwrap() error }:
		return cancelled(e.Unwrap())
	}
	return err == context.Canceled //nolint:errorlint // see above
}

// listenFlag begins the message of an error about an address that cannot be listened on with the flag that names it.
func listenFlag(flags *pflag.FlagSet, err error) string {
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

// message is what a person should read of an error: for a status its text, reason and field faults, not its Go form.
func message(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && errors.Join(joined.Unwrap()...).Error() == err.Error() {
		var lines []string
		for _, sub := range joined.Unwrap() {
			lines = append(lines, message(sub))
		}
		return strings.Join(lines, "\n")
	}
	if h, ok := errors.AsType[*hintError](err); ok {
		return message(h.err) + "\n" + h.hint
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
