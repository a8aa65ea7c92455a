package controllerruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/client"
)

// transport answers lists and watches of the Kubernetes API from the index, for a cache of
// controller-runtime. Everything else goes to the API server, and so do kinds that the index does
// not have.
//
// A watch begins with the state, as client-go's reflectors ask for it, or goes on at a resource
// version that an answer of this transport had: others are gone. Lists are whole, whatever limit is
// asked for, and watches do not end when the time is over that was asked for.
type transport struct {
	op     *Operator
	mapper meta.RESTMapper
	prefix string // of paths, without a slash at its end
	next   http.RoundTripper

	mu    sync.Mutex // guards what follows
	at    map[string]client.Position
	order []string // of at, oldest first
}

// request is a list or a watch.
type request struct {
	resource   schema.GroupVersionResource
	namespace  string
	collection string
	labels     string
	fields     string
	metadata   bool
	watch      bool
	initial    bool // the state comes first
	marked     bool // the end of the state is marked
	version    string
	gvk        schema.GroupVersionKind
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	q, ok := t.parse(r)
	if !ok {
		return t.next.RoundTrip(r)
	}
	collection, err := t.op.collection(r.Context(), q.resource)
	switch {
	case err != nil:
		return refusal(r, err), nil
	case collection == "":
		return t.next.RoundTrip(r)
	}
	if q.gvk, err = t.mapper.KindFor(q.resource); err != nil {
		return nil, err
	}
	q.collection = collection
	if q.watch {
		return t.watch(r, q), nil
	}
	return t.list(r, q), nil
}

// parse reads a request; false when it is no list and no watch of objects.
func (t *transport) parse(r *http.Request) (q request, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, t.prefix)
	if !ok || r.Method != http.MethodGet {
		return q, false
	}
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		q.resource = schema.GroupVersionResource{Version: parts[1]}
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		q.resource = schema.GroupVersionResource{Group: parts[1], Version: parts[2]}
		parts = parts[3:]
	default:
		return q, false
	}
	switch {
	case len(parts) == 1:
	case len(parts) == 3 && parts[0] == "namespaces":
		q.namespace, parts = parts[1], parts[2:]
	default:
		return q, false
	}
	q.resource.Resource = parts[0]
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, "as=Table") {
		return q, false
	}
	q.metadata = strings.Contains(accept, "as=PartialObjectMetadata")
	v := r.URL.Query()
	q.labels, q.fields, q.version = v.Get("labelSelector"), v.Get("fieldSelector"), v.Get("resourceVersion")
	q.watch = isTrue(v.Get("watch"))
	q.marked = isTrue(v.Get("sendInitialEvents"))
	q.initial = q.marked || q.version == "" || q.version == "0"
	return q, true
}

func isTrue(s string) bool { return s == "1" || s == "true" }

// options are those of the index's watch.
func (t *transport) options(q request) client.WatchOptions {
	o := client.WatchOptions{
		Namespace: q.namespace, Labels: q.labels, FieldSelector: q.fields, Previous: true, BookmarkEvery: bookmarkEvery, Log: t.op.o.Log,
	}
	if q.metadata {
		o.View = client.ViewMetadata
	}
	return o
}

// statusOf is what an API server would say of an error of the index.
func statusOf(err error) *metav1.Status {
	s := &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: err.Error(), Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
	}
	e, _ := errors.AsType[*client.Error](err)
	switch {
	case e != nil && e.Code == codes.InvalidArgument:
		s.Reason, s.Code = metav1.StatusReasonBadRequest, http.StatusBadRequest
	case e != nil && e.Code == codes.Unauthenticated:
		s.Reason, s.Code = metav1.StatusReasonUnauthorized, http.StatusUnauthorized
	case e != nil && e.Code == codes.PermissionDenied:
		s.Reason, s.Code = metav1.StatusReasonForbidden, http.StatusForbidden
	case e != nil && e.Code == codes.NotFound:
		s.Reason, s.Code = metav1.StatusReasonNotFound, http.StatusNotFound
	case e != nil && e.Code == codes.Unavailable, errors.Is(err, client.ErrNotSynced), errors.Is(err, client.ErrRevisionNotReached),
		errors.Is(err, client.ErrIndexBuilding):
		s.Reason, s.Code = metav1.StatusReasonServiceUnavailable, http.StatusServiceUnavailable
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		s.Reason, s.Code = metav1.StatusReasonTimeout, http.StatusGatewayTimeout
	}
	return s
}

// expired says that a watch cannot go on: its reflector lists again.
func expired(why string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: why, Reason: metav1.StatusReasonExpired, Code: http.StatusGone,
	}
}

func refusal(r *http.Request, err error) *http.Response { return answer(r, statusOf(err)) }

// answer is a response with a status.
func answer(r *http.Request, s *metav1.Status) *http.Response {
	b, err := json.Marshal(s)
	if err != nil {
		b = []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`)
	}
	resp := response(r, int(s.Code), b)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		resp.Header.Set("Retry-After", fmt.Sprint(s.Details.RetryAfterSeconds))
	}
	return resp
}
