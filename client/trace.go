package client

import (
	"context"
	"errors"
	"strings"
	"time"

	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/tracing"
	"github.com/deltaplane/deltaplane/internal/wrote"
)

const tracerName = "github.com/deltaplane/deltaplane/client"

// TraceOf is the W3C traceparent of the span in ctx; empty without one.
func TraceOf(ctx context.Context) string { return tracing.Parent(ctx) }

// Span is that of the item's run, and before that of what caused it; invalid while nothing of it is
// recorded. A histogram may have it as an exemplar.
func (i Item) Span() trace.SpanContext { return i.span }

// traced is a run as far as it is traced.
type traced struct {
	w    *Worker
	t    *task
	ctx  context.Context
	span trace.Span // nil while the run is not recorded
	// others are causes beside the parent.
	others []trace.SpanContext
}

// trace begins the spans of a run whose cause is recorded: the newest such cause is continued, and
// the others are linked. A run with another cause has none, unless it fails.
func (w *Worker) trace(t *task) traced {
	r := traced{w: w, t: t, ctx: &t.context}
	if w.cfg.Tracer == nil {
		return r
	}
	var parent trace.SpanContext
	parent, r.others = tracing.Split(t.item.Traces)
	if !parent.IsSampled() {
		return r
	}
	r.begin(trace.ContextWithRemoteSpanContext(r.ctx, parent))
	return r
}

// begin makes the spans of the wait and of the run.
func (r *traced) begin(ctx context.Context, links ...trace.Link) {
	tracer, item := r.w.cfg.Tracer.Tracer(tracerName), &r.t.item
	about := trace.WithAttributes(tracing.KeyQueue.String(item.Queue), tracing.KeyKey.String(item.Key), tracing.KeyAttempt.Int64(item.Attempt))
	began := r.t.began
	ctx, wait := tracer.Start(ctx, "queue", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(earlier(item.AddedAt, began)), about, trace.WithLinks(links...))
	wait.End(trace.WithTimestamp(began))
	for _, other := range r.others {
		links = append(links, tracing.Link(other, tracing.CauseMerged))
	}
	r.ctx, r.span = tracer.Start(ctx, "reconcile", trace.WithTimestamp(began), about, trace.WithLinks(links...)) //nolint:spancheck // end ends it
	item.span = r.span.SpanContext()
}

// earlier is at, unless that is later than began: it is another machine's time.
func earlier(at, began time.Time) time.Time {
	if at.IsZero() || at.After(began) {
		return began
	}
	return at
}

// end ends the run's spans. A run that is not recorded and failed, or of which a write was refused,
// begins a trace of its own with what is known of it, now and then.
func (r *traced) end(res Result, err error) {
	if r.w.cfg.Tracer == nil {
		return
	}
	failed := err != nil && res.Outcome != OutcomeRelease && !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrStopping)
	if r.span == nil {
		refused := r.t.context.notes.Refused()
		if !failed && (err != nil || len(refused) == 0) || !r.w.errors.Allow(time.Now()) {
			return
		}
		r.begin(tracing.Root(trace.ContextWithSpanContext(r.ctx, trace.SpanContext{})), r.barrier()...)
		wrote.Spans(r.ctx, r.w.cfg.Tracer, append(r.t.context.notes.All(), refused...))
	}
	r.span.SetAttributes(tracing.KeyOutcome.String(res.Outcome.String()))
	if failed {
		r.span.RecordError(err)
		r.span.SetStatus(otelcodes.Error, err.Error())
	}
	r.span.End()
}

// mostBarriers bounds the links to events that a run waited for.
const mostBarriers = 8

// barrier links to the events that the item waited for, recorded or not.
func (r *traced) barrier() (links []trace.Link) {
	for collection, at := range r.t.item.Barrier {
		if len(links) < mostBarriers && at.RV != "" {
			links = append(links, tracing.Link(tracing.EventOf(collection, at.RV).Context(false), tracing.CauseBarrier,
				tracing.KeyCollection.String(collection), tracing.KeyRV.String(at.RV)))
		}
	}
	return links
}

// clusterOf is the cluster of a queue, which by custom begins its name.
func clusterOf(queue string) string {
	cluster, _, _ := strings.Cut(queue, "/")
	return cluster
}

// traced begins a span for each record of a batch that is traced.
func (t *Trigger) traced(ctx context.Context, b Batch) (spans map[int]trace.Span) {
	if t.cfg.Tracer == nil {
		return nil
	}
	for i := range b.Records {
		r := &b.Records[i]
		if r.Kind != delta.KindDelta || !tracing.Sampled(r.Trace) {
			continue
		}
		if spans == nil {
			spans = map[int]trace.Span{}
		}
		_, spans[i] = t.cfg.Tracer.Tracer(tracerName).Start(tracing.With(ctx, r.Trace), "trigger", trace.WithSpanKind(trace.SpanKindConsumer), //nolint:spancheck // endSpans ends it
			trace.WithAttributes(tracing.KeyQueue.String(t.q.Name()), tracing.KeyCollection.String(b.Collection.String()),
				tracing.KeyKey.String(string(r.Key)), tracing.KeyRV.String(r.RV)))
	}
	return spans
}

// traceOf is what the keys of a record carry.
func traceOf(ctx context.Context, spans map[int]trace.Span, i int, r *delta.Record) string {
	if span := spans[i]; span != nil {
		return tracing.Parent(trace.ContextWithSpan(ctx, span))
	}
	return r.Trace
}

func endSpans(spans map[int]trace.Span, err error) {
	for _, span := range spans {
		if err != nil {
			span.SetStatus(otelcodes.Error, err.Error())
		}
		span.End()
	}
}
