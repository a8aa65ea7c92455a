package wrote_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/deltaplane/deltaplane/internal/tracing"
	"github.com/deltaplane/deltaplane/internal/wrote"
)

func TestAWriteIsNamedByItsRequestAndItsAnswer(t *testing.T) {
	t.Parallel()
	const object = `{"kind":"Pod","metadata":{"name":"a","namespace":"ns","resourceVersion":"7"}}`
	for _, c := range []struct {
		method, path, answer string
		want                 string
	}{
		{http.MethodPost, "/api/v1/namespaces/ns/pods", object, "create pods.v1 ns/a 7"},
		{http.MethodPut, "/apis/batch/v1/namespaces/ns/jobs/b/status", object, "update jobs.v1.batch ns/b 7"},
		{http.MethodPatch, "/proxy/api/v1/nodes/n", object, "patch nodes.v1 n 7"},
		{http.MethodPost, "/api/v1/nodes", object, "create nodes.v1 a 7"},
		{http.MethodDelete, "/api/v1/namespaces/ns/pods/a", `{"kind":"Status"}`, "delete pods.v1 ns/a "},
		{http.MethodPut, "/api/v1/namespaces/ns/status", object, "update namespaces.v1 ns 7"},
		{http.MethodPost, "/api/v1/namespaces/ns/pods/a/eviction", `{"kind":"Status"}`, "create pods.v1 ns/a "},
		{http.MethodGet, "/api/v1/namespaces/ns/pods/a", object, ""},
		{http.MethodDelete, "/api/v1/namespaces/ns/pods", `{"kind":"Status"}`, ""},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"kind":"SubjectAccessReview"}`, ""},
		{http.MethodPost, "/version", object, ""},
	} {
		var n wrote.Notes
		_, call := wrote.Begin(noting(t, &n), "dev", c.method, c.path)
		call.CarriedOut([]byte(c.answer))
		got := ""
		for _, w := range n.All() {
			got = fmt.Sprint(w.Verb, " ", w.Resource, " ", w.Key, " ", w.RV)
		}
		if got != c.want {
			t.Errorf("%s %s is noted as %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

func TestNotesKeepTheLastWrites(t *testing.T) {
	t.Parallel()
	var n wrote.Notes
	for i := range 3 * wrote.Most {
		_, call := wrote.Begin(noting(t, &n), "", http.MethodPut, fmt.Sprintf("/api/v1/nodes/n%d", i))
		call.CarriedOut(nil)
	}
	if all := n.All(); len(all) != wrote.Most || all[0].Key != "n32" || all[15].Key != "n47" {
		t.Errorf("%d are kept: %v", len(all), all)
	}
	if _, call := wrote.Begin(t.Context(), "dev", http.MethodPut, "/api/v1/nodes/n"); call != nil {
		t.Error("a call is looked at, and nobody notes")
	}
}

func noting(t *testing.T, n *wrote.Notes) context.Context {
	t.Helper()
	return context.WithValue(t.Context(), wrote.Key{}, n)
}

func TestAWriteOfATracedRunHasASpanThatLinksToItsEvent(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	n := wrote.Notes{Cluster: "dev"}
	ctx, run := provider.Tracer("t").Start(noting(t, &n), "run")
	within, call := wrote.Begin(ctx, "", http.MethodPost, "/api/v1/namespaces/ns/pods")
	header := http.Header{}
	wrote.Inject(within, header)
	call.CarriedOut([]byte(`{"metadata":{"name":"a","resourceVersion":"7"}}`))
	_, call = wrote.Begin(ctx, "", http.MethodDelete, "/api/v1/namespaces/ns/pods/b")
	call.Failed("409 Conflict")
	run.End()
	ended := spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans", len(ended))
	}
	create, drop := ended[0], ended[1]
	attrs := fmt.Sprint(create.Attributes())
	if create.Name() != "create pods.v1" || create.Parent().SpanID() != run.SpanContext().SpanID() || !strings.Contains(attrs, "dev/pods.v1") ||
		!strings.Contains(attrs, "ns/a") || !strings.Contains(header.Get("traceparent"), create.SpanContext().SpanID().String()) {
		t.Errorf("%s %v below %v, sent as %v", create.Name(), attrs, create.Parent().SpanID(), header)
	}
	if l := create.Links(); len(l) != 1 || l[0].SpanContext.TraceID() != tracing.EventOf("dev/pods.v1", "7").Context(true).TraceID() {
		t.Errorf("links %v, want one to the event at 7", l)
	}
	if drop.Status().Description != "409 Conflict" || len(n.All()) != 1 || len(n.Refused()) != 1 {
		t.Errorf("refused: %v; noted %v and %v", drop.Status(), n.All(), n.Refused())
	}
}
