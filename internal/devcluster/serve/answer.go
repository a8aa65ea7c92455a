package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

func notServed() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{},
	}}
}

func methodNotAllowed() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "the server does not allow this method on the requested resource", Details: &metav1.StatusDetails{},
	}}
}

func unsupportedMedia(known ...string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format - accepted media types include: " + strings.Join(known, ", "),
		Details: &metav1.StatusDetails{},
	}}
}

// object answers one object in the form asked for.
func (c *call) object(code int, o *store.Object) error {
	switch c.as {
	case asTable:
		include := metav1.IncludeObjectPolicy(c.req.URL.Query().Get("includeObject"))
		return c.json(code, newTableView(c.res, []*store.Object{o}, include, &metav1.ListMeta{ResourceVersion: o.Decoded.GetResourceVersion()}, true))
	case asPartial:
		return c.json(code, partial(o))
	}
	return c.bytes(code, o.Raw)
}

func (c *call) json(code int, v any) error { return writeJSON(c.w, code, v) }

func (c *call) bytes(code int, raw []byte) error {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(code)
	_, err := c.w.Write(raw)
	return quietly(err)
}

// quietly drops the error of writing to a client that has left.
func quietly(error) error { return nil }

// marshal is json.Marshal with the error a handler may return.
func marshal(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return raw, nil
}

func writeJSON(w http.ResponseWriter, code int, v any) error {
	raw, err := marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, err = w.Write(append(raw, '\n'))
	return quietly(err)
}

// statusOf is an error as the API reports it.
func statusOf(err error) metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	return known.Status()
}

// writeError answers any error as a Status.
func writeError(w http.ResponseWriter, err error) {
	s := statusOf(err)
	s.Kind, s.APIVersion = "Status", "v1"
	if s.Code == 0 {
		s.Code = http.StatusInternalServerError
	}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(s.Details.RetryAfterSeconds))
	}
	_ = writeJSON(w, int(s.Code), s)
}
