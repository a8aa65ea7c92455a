package reflector

import (
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

func TestTheEventOfARecordedWriteIsRecordedThoughNoneIsSampled(t *testing.T) {
	t.Parallel()
	const pods = "dev/pods.v1"
	spans, writes := tracetest.NewSpanRecorder(), tracing.NewWrites()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(tracing.NewSampler()), sdktrace.WithIDGenerator(tracing.NewIDs()),
		sdktrace.WithSpanProcessor(spans), sdktrace.WithSpanProcessor(writes))
	tr := tracer{Tracer: provider.Tracer("t"), writes: writes}
	_, write := tr.Start(tracing.Root(t.Context()), "update pods.v1", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		tracing.KeyVerb.String("update"), tracing.KeyCollection.String(pods), tracing.KeyKey.String("ns/a"), tracing.KeyRV.String("7")))
	write.End()
	records := []delta.Record{
		{Kind: delta.KindDelta, Type: delta.Updated, Key: "ns/a", RV: "6"},
		{Kind: delta.KindDelta, Type: delta.Updated, Key: "ns/a", RV: "7"},
		{Kind: delta.KindDelta, Type: delta.Replaced, Key: "ns/a", RV: "7"}, // of a list
	}
	endTraces(tr.begin(t.Context(), pods, records, time.Now()), len(records), nil)
	if records[0].Trace != "" || records[1].Trace == "" || records[2].Trace != "" {
		t.Errorf("traces %q, %q and %q, want that of the second alone", records[0].Trace, records[1].Trace, records[2].Trace)
	}
	for _, s := range spans.Ended() {
		if s.Name() == "event" && (len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != write.SpanContext().SpanID()) {
			t.Errorf("links %v, want one to the write", s.Links())
		}
	}
	if n := len(spans.Ended()); n != 3 {
		t.Errorf("%d spans, want those of the write, its event and the publishing", n)
	}
}
