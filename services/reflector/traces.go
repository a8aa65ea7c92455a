package reflector

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// tracer begins the traces of events. Events of a watch are sampled, and those that a sampled write
// of this process caused; objects of lists are not, since they were no event now.
type tracer struct {
	trace.Tracer

	ratio  tracing.Ratio
	writes *tracing.Writes
}

func newTracer(tel *telemetry.Telemetry) tracer {
	return tracer{tel.Tracer.Tracer("deltaplane/reflector"), tel.Events, tel.Writes}
}

// traced are the spans of one event.
type traced struct {
	at             int // the event's record
	event, publish trace.Span
}

// begin begins the traces of those of a batch that are sampled. Their records carry the context.
func (t *tracer) begin(ctx context.Context, name string, records []delta.Record, now time.Time) (spans []traced) {
	if t.writes == nil && t.ratio == (tracing.Ratio{}) {
		return nil
	}
	events := tracing.CollectionOf(name)
	for i := range records {
		r := &records[i]
		if r.Kind != delta.KindDelta || r.Type == delta.Replaced || r.DeleteReason != "" && r.DeleteReason != delta.Observed {
			continue
		}
		id := events.Event(r.RV)
		sampled := t.ratio.Samples(id)
		write, caused := t.writes.Caused(name, string(r.Key), r.RV, sampled, now)
		if !caused && !sampled {
			continue
		}
		spans = append(spans, t.event(ctx, name, id, write, i, r))
	}
	return spans
}

func (t *tracer) event(ctx context.Context, name string, id tracing.Identity, write trace.SpanContext, at int, r *delta.Record) traced {
	options := []trace.SpanStartOption{
		trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
			tracing.KeyCollection.String(name), tracing.KeyKey.String(string(r.Key)), tracing.KeyRV.String(r.RV), tracing.KeyType.String(r.Type.String())),
	}
	if !r.ObservedAt.IsZero() {
		options = append(options, trace.WithTimestamp(r.ObservedAt))
	}
	if write.IsValid() {
		options = append(options, trace.WithLinks(tracing.Link(write, tracing.CauseWrite)))
	}
	ctx, event := t.Start(tracing.RootOf(ctx, id), "event", options...)                 //nolint:spancheck // endTraces ends them
	ctx, publish := t.Start(ctx, "publish", trace.WithSpanKind(trace.SpanKindProducer)) //nolint:spancheck // so too
	r.Trace = tracing.Parent(ctx)
	return traced{at, event, publish} //nolint:spancheck // see above
}

// endTraces ends the spans of a batch once the log has it, or has not.
func endTraces(spans []traced, records int, err error) {
	for _, s := range spans {
		s.publish.SetAttributes(tracing.KeyRecords.Int(records))
		if err != nil {
			s.publish.SetStatus(codes.Error, err.Error())
		}
		s.publish.End()
		s.event.End()
	}
}
