package rpc_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

func TestACallWithinARecordedSpanHasASpanOnBothSidesAndAnExemplar(t *testing.T) {
	t.Parallel()
	spans, reg := tracetest.NewSpanRecorder(), prometheus.NewRegistry()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(tracing.NewSampler()), sdktrace.WithSpanProcessor(spans))
	b := start(t, rpc.ServerConfig{}, rpc.Options{Tracer: provider, Registry: reg}, &echo{
		call: func(_ context.Context, text string) error {
			if text == "fail" {
				return status.Error(codes.Internal, "no such thing")
			}
			return nil
		},
	}, rpc.DialConfig{Tracer: provider})
	unsampled := trace.ContextWithSpanContext(t.Context(), tracing.EventOf("dev/pods.v1", "1").Context(false))
	for _, ctx := range []context.Context{t.Context(), unsampled} {
		if err := b.call(ctx, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(spans.Ended()); n != 0 {
		t.Fatalf("%d spans of calls that nobody records", n)
	}
	ctx, root := provider.Tracer("t").Start(tracing.Root(t.Context()), "root")
	defer root.End()
	if err := b.call(ctx, "fail"); status.Code(err) != codes.Internal {
		t.Fatal(err)
	}
	ended := spans.Ended()
	if len(ended) != 2 {
		t.Fatalf("%d spans, want the server's and the client's", len(ended))
	}
	server, client := ended[0], ended[1]
	if server.Parent().SpanID() != client.SpanContext().SpanID() || client.Parent().SpanID() != root.SpanContext().SpanID() ||
		server.SpanKind() != trace.SpanKindServer || server.Status().Description != "Internal: no such thing" {
		t.Errorf("the server's span is %s %v below %s", server.Name(), server.Status(), client.Name())
	}
	page, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(page, r)
	if !strings.Contains(page.Body.String(), `trace_id="`+root.SpanContext().TraceID().String()) {
		t.Errorf("no exemplar of the call:\n%s", page.Body)
	}
}
