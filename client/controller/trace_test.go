package controller_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/deltaplane/deltaplane/client/controller"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// The records have the context of their events, as a reflector writes them.
func TestOneTraceLeadsFromAnEventToTheWritesOfItsReconcile(t *testing.T) {
	t.Parallel()
	onEachSource(t, func(t *testing.T, r *rig) {
		spans, l := tracetest.NewSpanRecorder(), newLedger()
		write := func(ctx context.Context, p *replica, req controller.Request) (controller.Result, error) {
			result, err := l.reconcile(ctx, p, req)
			if err != nil {
				return result, err
			}
			patch, err := http.NewRequestWithContext(ctx, http.MethodPatch, "http://api/api/v1/namespaces/ns/pods/"+req.Name, http.NoBody)
			if err != nil {
				return result, err
			}
			resp, err := (&http.Client{Transport: p.Transport("")(&sent{})}).Do(patch)
			if err == nil {
				err = resp.Body.Close()
			}
			return result, err
		}
		r.put("pods", "ns/a", "1")
		r.put("pods", "ns/owner", "1")
		p := r.replica("a", func(c *controller.Controller) { c.For("pods").Owns("configmaps") }, write, func(o *controller.Options) {
			o.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSampler(tracing.NewSampler()), sdktrace.WithIDGenerator(tracing.NewIDs()), sdktrace.WithSpanProcessor(spans))
		})
		r.leader(p)
		r.settled(l, "begun")
		events := map[string]bool{}
		for name, put := range map[string]func(trace string){
			"of the object":   func(trace string) { r.traced(trace, "pods", "ns/a", "2") },
			"of what it owns": func(trace string) { r.traced(trace, "configmaps", "ns/c", "1", "owner") },
		} {
			event := tracing.EventOf("dev/pods.v1", name).Context(true)
			events[event.TraceID().String()] = true
			put("00-" + event.TraceID().String() + "-" + event.SpanID().String() + "-01")
			r.eventually("one trace of an event "+name, func() string {
				paths := pathsOf(spans.Ended(), event.TraceID().String(), event.SpanID().String())
				if !slices.Contains(paths, "trigger > queue > reconcile > patch pods.v1") {
					return fmt.Sprintf("the event has %q", paths)
				}
				return ""
			})
		}
		r.settled(l, "untraced")
		for _, s := range spans.Ended() {
			if s.Name() == "trigger" && !events[s.SpanContext().TraceID().String()] {
				t.Errorf("a change that is not recorded has a span: %v", s.Attributes())
			}
		}
	}, "pods", "configmaps")
}

// pathsOf are the ways of a trace that lead from a span to those behind it.
func pathsOf(spans []sdktrace.ReadOnlySpan, trace, from string) (paths []string) {
	type place struct{ name, above string }
	at := map[string]place{}
	for _, s := range spans {
		if s.SpanContext().TraceID().String() == trace {
			at[s.SpanContext().SpanID().String()] = place{s.Name(), s.Parent().SpanID().String()}
		}
	}
	for id := range at {
		path := []string(nil)
		for id != from && at[id] != (place{}) {
			path, id = append(path, at[id].name), at[id].above
		}
		if id == from {
			slices.Reverse(path)
			paths = append(paths, strings.Join(path, " > "))
		}
	}
	return paths
}
