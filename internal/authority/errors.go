package authority

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// ErrDenied is the kind of every refusal of somebody who may not do what they want.
var ErrDenied = errors.New("permission denied")

// ErrUndecided is the kind of every refusal because nobody could say whether it is permitted.
var ErrUndecided = errors.New("permission cannot be decided")

// refusal is an error that is a status.
type refusal struct {
	is     error
	text   string
	code   codes.Code
	reason string
	meta   map[string]string
	retry  time.Duration
}

// Error implements error.
func (e *refusal) Error() string { return e.text }

// Unwrap returns the kind.
func (e *refusal) Unwrap() error { return e.is }

// GRPCStatus makes the error a status.
func (e *refusal) GRPCStatus() *status.Status {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: e.reason, Domain: rpc.Domain, Metadata: e.meta}}
	if e.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retry)})
	}
	st := status.New(e.code, e.text)
	if with, err := st.WithDetails(details...); err == nil {
		return with
	}
	return st
}

// about are the metadata that name what was wanted.
func about(a *access.Attributes) map[string]string {
	meta := map[string]string{"verb": a.Verb, "group": a.Group, "resource": a.Resource}
	for k, v := range map[string]string{"cluster": a.Cluster, "namespace": a.Namespace, "name": a.Name, "subresource": a.Subresource} {
		if v != "" {
			meta[k] = v
		}
	}
	return meta
}

func denied(id *access.Identity, a *access.Attributes) error {
	return &refusal{
		is: ErrDenied, code: codes.PermissionDenied, reason: "PERMISSION_DENIED", meta: about(a),
		text: fmt.Sprintf("%s may not %s", who(id), a),
	}
}

// undecidedRetry is when to ask again what could not be decided.
const undecidedRetry = time.Second

func undecided(id *access.Identity, a *access.Attributes, err error) error {
	return &refusal{
		is: ErrUndecided, code: codes.Unavailable, reason: "ACCESS_UNDECIDED", meta: about(a), retry: undecidedRetry,
		text: fmt.Sprintf("whether %s may %s cannot be decided: %v", who(id), a, err),
	}
}

func unauthenticated(text string) error {
	return &refusal{is: ErrDenied, code: codes.Unauthenticated, reason: "UNAUTHENTICATED", text: text}
}

// who names a caller for people.
func who(id *access.Identity) string {
	switch {
	case id == nil:
		return "nobody"
	case id.Cluster != "":
		return fmt.Sprintf("%q of cluster %s", id.User, id.Cluster)
	}
	return fmt.Sprintf("%q (%s)", id.User, id.Source)
}
