package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

func TestAKeyCarriesTheNewestRecordedCauseOfALoad(t *testing.T) {
	event := func(rv int, sampled bool) string {
		c := tracing.EventOf("dev/pods.v1", fmt.Sprint(rv)).Context(sampled)
		return tracing.Parent(trace.ContextWithSpanContext(t.Context(), c))
	}
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	for name, o := range map[string]Options{"with spans": {Tracer: provider}, "without": {}} {
		o.Name = "test"
		f := follower{t: &term{c: New(nil, nil, o)}, w: &watched{collection: "dev/pods.v1"}}
		var of causes
		change := func(rv int, trace string, keys ...string) {
			f.trace(t.Context(), &of, step{change: &Change{Object: client.Object{Key: "ns/a", ResourceVersion: fmt.Sprint(rv)}}, trace: trace}, time.Now(), keys)
		}
		change(1, event(1, true), "ns/a", "ns/b")
		change(2, event(2, true), "ns/a")
		change(3, event(3, false), "ns/a")
		change(4, "", "ns/b")
		change(5, "00-no traceparent at all, though it is as long as one-1", "ns/b")
		change(6, event(6, true))
		for key, rv := range map[string]int{"ns/a": 2, "ns/b": 1} {
			is, want := tracing.Parse(of.of[key]), tracing.Parse(event(rv, true))
			if is.TraceID() != want.TraceID() || is.Equal(want) != (o.Tracer == nil) {
				t.Errorf("%s: %s carries %s, want the trace of the event %s", name, key, of.of[key], event(rv, true))
			}
		}
		if want := map[bool]int{true: 2}[o.Tracer != nil]; len(of.spans) != want {
			t.Errorf("%s: %d spans, want %d", name, len(of.spans), want)
		}
		for rv := 10; rv < 10+2*mostSpans; rv++ {
			change(rv, event(rv, true), "ns/c")
		}
		if want := map[bool]int{true: mostSpans}[o.Tracer != nil]; len(of.spans) != want || of.of["ns/c"] != event(9+2*mostSpans, true) {
			t.Errorf("%s: %d spans, want %d; the key carries %s", name, len(of.spans), want, of.of["ns/c"])
		}
		of.end(false)
	}
	if ended := spans.Ended(); len(ended) != mostSpans || ended[0].Status().Code != otelcodes.Error {
		t.Errorf("%d spans of keys that are given up have ended", len(ended))
	}
}

func TestSpansOfKeysThatAreLeftToTheNextLeaderEnd(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	c := New(nil, nil, Options{Name: "test", Tracer: provider})
	leads := newTerm(c, client.Item{}, "g", feed.State{Generation: "g", Swept: time.Now().Unix()}, "")
	_, span := provider.Tracer("test").Start(t.Context(), "trigger")
	leads.load.causes.spans = append(leads.load.causes.spans, span)
	leads.load.keys["ns/a"] = client.Barrier{}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if again, err := leads.run(over); again != "" || err != nil {
		t.Errorf("%q, %v", again, err)
	}
	if ended := spans.Ended(); len(ended) != 1 || ended[0].Status().Code != otelcodes.Error {
		t.Errorf("%d spans have ended", len(ended))
	}
}
