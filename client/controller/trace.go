package controller

import (
	"context"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/internal/tracing"
)

const (
	tracerName = "github.com/deltaplane/deltaplane/client/controller"
	// mostSpans bounds the spans of one load, which grows for as long as the queue is away.
	mostSpans = 256
)

// causes are the recorded traces that keys of a load continue.
type causes struct {
	of    map[string]string // traceparents, by key
	spans []trace.Span      // of the changes, until their keys are added
}

// trace has keys continue the trace of the change that they are of, where that is recorded. Of
// several changes it is the newest such one.
func (f *follower) trace(ctx context.Context, to *causes, s step, began time.Time, keys []string) {
	parent := tracing.Recorded(s.trace)
	if parent == "" || len(keys) == 0 {
		return
	}
	if c := f.t.c; c.o.Tracer != nil && len(to.spans) < mostSpans {
		within, span := c.o.Tracer.Tracer(tracerName).Start(tracing.With(ctx, parent), "trigger",
			trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
				tracing.KeyQueue.String(c.queue.Name()), tracing.KeyCollection.String(f.w.collection),
				tracing.KeyKey.String(s.change.Object.Key), tracing.KeyRV.String(s.change.Object.ResourceVersion)))
		to.spans, parent = append(to.spans, span), tracing.Parent(within)
	}
	if to.of == nil {
		to.of = map[string]string{}
	}
	for _, key := range keys {
		to.of[key] = parent
	}
}

// end ends the spans once the queue has the keys, or they are given up.
func (c *causes) end(added bool) {
	for _, span := range c.spans {
		if !added {
			span.SetStatus(otelcodes.Error, "the keys were not added")
		}
		span.End()
	}
}
