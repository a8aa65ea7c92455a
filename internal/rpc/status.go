package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo domain of every status we make.
const Domain = "deltaplane.dev"

// A Rule maps the errors that match Is (by errors.Is) to a status.
type Rule struct {
	// Is is the sentinel that is looked for.
	Is error
	// Code is the gRPC code of the status.
	Code codes.Code
	// Reason is the ErrorInfo reason, UPPER_SNAKE_CASE, stable for clients.
	Reason string
	// Retry, when positive, is sent as RetryInfo. An error in the tree with a
	// method RetryAfter() time.Duration overrides it.
	Retry time.Duration
	// Spread is added to Retry by a random part, so that many callers refused
	// together do not come back together.
	Spread time.Duration
	// Metadata, when set, makes the ErrorInfo metadata from the error.
	Metadata func(error) map[string]string
}

// Status turns err into a status error:
//
//   - nil stays nil, and a status error stays as it is;
//   - the first rule that matches gives code and reason, with err's text as message;
//   - a [FieldError] in the tree adds BadRequest violations, and without a rule
//     is InvalidArgument with reason INVALID_ARGUMENT;
//   - context errors become Canceled and DeadlineExceeded;
//   - a status wrapped in another error keeps its code and details;
//   - everything else is a bare Internal, "internal error", so that nothing
//     inside leaks to callers.
func Status(err error, rules []Rule) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	fields := fieldErrors(err)
	for _, rule := range rules {
		if !errors.Is(err, rule.Is) {
			continue
		}
		var meta map[string]string
		if rule.Metadata != nil {
			meta = rule.Metadata(err)
		}
		st := withInfo(status.New(rule.Code, err.Error()), rule.Reason, meta)
		delay := rule.Retry
		if rule.Spread > 0 {
			delay += rand.N(rule.Spread)
		}
		return withDetails(st, violations(fields), retryInfo(err, delay)).Err()
	}
	if len(fields) > 0 {
		st := withInfo(status.New(codes.InvalidArgument, err.Error()), "INVALID_ARGUMENT", nil)
		return withDetails(st, violations(fields)).Err()
	}
	if st, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return st.GRPCStatus().Err()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "canceled")
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "deadline exceeded")
	}
	return status.Error(codes.Internal, "internal error")
}

func withInfo(st *status.Status, reason string, meta map[string]string) *status.Status {
	return withDetails(st, &errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: meta})
}

func withDetails(st *status.Status, details ...protoadapt.MessageV1) *status.Status {
	for _, d := range details {
		if d == nil {
			continue
		}
		if with, err := st.WithDetails(d); err == nil {
			st = with
		}
	}
	return st
}

func retryInfo(err error, delay time.Duration) protoadapt.MessageV1 {
	if r, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok {
		delay = r.RetryAfter()
	}
	if delay <= 0 {
		return nil
	}
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}
}

// A FieldError says what is wrong with one field of a request. Several of
// them, joined with errors.Join, become one BadRequest with all violations.
type FieldError struct {
	// Field is the path in the request, in proto names: "items[2].key".
	Field string
	// Description says what is wrong, to a person.
	Description string
	// Err is the cause, if there is one: rules are matched against it.
	Err error
}

// InvalidArgument returns a [FieldError] for a request field.
func InvalidArgument(field, description string) error {
	return &FieldError{Field: field, Description: description}
}

// InvalidField returns a [FieldError] described by err, which it wraps.
func InvalidField(field string, err error) error {
	return &FieldError{Field: field, Description: err.Error(), Err: err}
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s: %s", e.Field, e.Description) }

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

func fieldErrors(err error) []*FieldError {
	switch e := err.(type) { //nolint:errorlint // walks the tree itself
	case nil:
		return nil
	case *FieldError:
		return []*FieldError{e}
	case interface{ Unwrap() []error }:
		var all []*FieldError
		for _, child := range e.Unwrap() {
			all = append(all, fieldErrors(child)...)
		}
		return all
	case interface{ Unwrap() error }:
		return fieldErrors(e.Unwrap())
	}
	return nil
}

func violations(fields []*FieldError) protoadapt.MessageV1 {
	if len(fields) == 0 {
		return nil
	}
	bad := &errdetails.BadRequest{}
	for _, f := range fields {
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: f.Field, Description: f.Description})
	}
	return bad
}

// Code is the gRPC code of an error that came from a call: OK for nil, Unknown
// for an error that holds no status. Context errors have their own codes.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	st, ok := status.FromError(err)
	if !ok {
		return status.FromContextError(err).Code()
	}
	return st.Code()
}

// Message is the text that a server sent with err.
func Message(err error) string { return status.Convert(err).Message() }

// Reason is the ErrorInfo reason a Deltaplane server gave for err; empty when
// it gave none.
func Reason(err error) string {
	if info := Info(err); info != nil {
		return info.GetReason()
	}
	return ""
}

// Info is the ErrorInfo a Deltaplane server sent with err, or nil.
func Info(err error) *errdetails.ErrorInfo {
	for _, d := range details(err) {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}

// RetryDelay is how long the server asked to wait before the call is tried
// again; 0 when it did not say.
func RetryDelay(err error) time.Duration {
	for _, d := range details(err) {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// Violations are the request fields the server found fault with: field to
// description. Nil when there are none.
func Violations(err error) map[string]string {
	var found map[string]string
	for _, d := range details(err) {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				if found == nil {
					found = map[string]string{}
				}
				found[v.GetField()] = v.GetDescription()
			}
		}
	}
	return found
}

func details(err error) []any {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	return st.Details()
}
