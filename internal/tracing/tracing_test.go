package tracing_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/internal/tracing"
)

const (
	pods   = "dev/pods.v1"
	golden = "7cbfcf74d3697c34346598ff5e7e512d"
)

func TestTheShareOfSampledEventsIsTheRatio(t *testing.T) {
	t.Parallel()
	const n = 200_000
	for share, within := range map[float64]int{0: 0, .01: 200, .5: 1000, 1: 0} {
		ratio, events, sampled := tracing.RatioOf(share), tracing.CollectionOf(pods), 0
		for i := range n {
			if ratio.Samples(events.Event(fmt.Sprint(1_000_000 + i))) {
				sampled++
			}
		}
		if want := int(share * n); sampled < want-within || sampled > want+within {
			t.Errorf("of %d events %d are sampled at %v", n, sampled, share)
		}
	}
}

func TestAnEventHasItsOwnIdentityInEveryProcess(t *testing.T) {
	t.Parallel()
	seen := map[trace.TraceID]string{}
	for _, col := range []string{pods, "dev/pods.v", "prod/pods.v1"} {
		for rv := range 1000 {
			c := tracing.EventOf(col, fmt.Sprint(rv)).Context(true)
			if !c.IsValid() || !c.IsSampled() {
				t.Fatalf("%s %d: %v", col, rv, c)
			}
			if other, again := seen[c.TraceID()]; again {
				t.Fatalf("%s %d has the trace of %s", col, rv, other)
			}
			seen[c.TraceID()] = fmt.Sprint(col, " ", rv)
		}
	}
	// A build that computes it in another way would not link to what others record.
	if got := tracing.EventOf(pods, "42").Context(false); got.TraceID().String() != golden {
		t.Errorf("the event of 42 has the trace %s, want %s", got.TraceID(), golden)
	}
}

func provider(more ...sdktrace.TracerProviderOption) (trace.Tracer, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	more = append(more, sdktrace.WithSampler(tracing.NewSampler()), sdktrace.WithIDGenerator(tracing.NewIDs()), sdktrace.WithSpanProcessor(spans))
	return sdktrace.NewTracerProvider(more...).Tracer("t"), spans
}

func TestOnlyRootsAndChildrenOfSampledSpansAreRecorded(t *testing.T) {
	t.Parallel()
	tracer, _ := provider()
	event := tracing.EventOf(pods, "7")
	parent := func(sampled bool) context.Context {
		return trace.ContextWithRemoteSpanContext(t.Context(), event.Context(sampled))
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		opts []trace.SpanStartOption
		want bool
	}{
		"no parent":                  {ctx: t.Context()},
		"unsampled parent":           {ctx: parent(false)},
		"sampled parent":             {ctx: parent(true), want: true},
		"root":                       {ctx: tracing.Root(t.Context()), want: true},
		"root below an unsampled":    {ctx: tracing.Root(parent(false))},
		"new root of an unsampled":   {ctx: tracing.Root(parent(false)), opts: []trace.SpanStartOption{trace.WithNewRoot()}, want: true},
		"new root that nobody meant": {ctx: parent(true), opts: []trace.SpanStartOption{trace.WithNewRoot()}},
	} {
		_, span := tracer.Start(c.ctx, "s", c.opts...)
		if got := span.SpanContext().IsSampled(); got != c.want || span.IsRecording() != c.want {
			t.Errorf("%s: sampled %v, want %v", name, got, c.want)
		}
		span.End()
	}
	_, span := tracer.Start(tracing.RootOf(t.Context(), event), "s")
	defer span.End()
	if got, want := span.SpanContext(), event.Context(true); got.TraceID() != want.TraceID() || got.SpanID() != want.SpanID() {
		t.Errorf("the root is %v %v, want %v %v", got.TraceID(), got.SpanID(), want.TraceID(), want.SpanID())
	}
}

func TestTheNewestSampledCauseIsTheParent(t *testing.T) {
	t.Parallel()
	text := func(rv string, sampled bool) string {
		return tracing.Parent(trace.ContextWithSpanContext(t.Context(), tracing.EventOf(pods, rv).Context(sampled)))
	}
	parent, others := tracing.Split([]string{text("1", true), text("2", true), "no trace at all", text("3", false), strings.Repeat("1", 60)})
	if parent.TraceID() != tracing.EventOf(pods, "2").Context(true).TraceID() || len(others) != 2 || others[1].IsSampled() {
		t.Errorf("parent %v, others %v", parent.TraceID(), others)
	}
	if parent, others := tracing.Split([]string{text("3", false)}); parent.IsValid() || len(others) != 1 {
		t.Errorf("of an unsampled cause: parent %v, others %v", parent.TraceID(), others)
	}
}

func TestTheEventOfASampledWriteIsLinkedToIt(t *testing.T) {
	t.Parallel()
	writes := tracing.NewWrites()
	tracer, _ := provider(sdktrace.WithSpanProcessor(writes))
	now := time.Now()
	if _, caused := writes.Caused(pods, "ns/a", "7", false, now); caused {
		t.Error("an event is caused by a write, and nobody wrote")
	}
	write := func(key, verb string) trace.Span {
		_, span := tracer.Start(tracing.Root(t.Context()), "w", trace.WithSpanKind(trace.SpanKindClient), //nolint:spancheck // the caller ends it
			trace.WithAttributes(tracing.KeyVerb.String(verb), tracing.KeyCollection.String(pods), tracing.KeyKey.String(key)))
		return span //nolint:spancheck // the caller ends it
	}
	span, other := write("ns/a", "update"), write("other/", "create")
	for key, want := range map[string]bool{"ns/a": true, "ns/ab": false, "other/x": true, "a": false} {
		if by, caused := writes.Caused(pods, key, "7", false, now); caused != want || by.IsValid() {
			t.Errorf("before the answer: the event of %s is caused %v by %v, want %v", key, caused, by, want)
		}
	}
	other.End()
	node := write("", "create") // of what has no namespace
	if _, caused := writes.Caused(pods, "node-1", "7", false, now); !caused {
		t.Error("an event of what is created without a namespace is not followed")
	}
	node.End()
	span.SetAttributes(tracing.KeyRV.String("7"))
	span.End(trace.WithTimestamp(now))
	old := write("ns/old", "update")
	old.SetAttributes(tracing.KeyRV.String("1"))
	old.End(trace.WithTimestamp(now.Add(-2 * time.Minute)))
	for rv, want := range map[string]bool{"7": true, "8": false} {
		if by, caused := writes.Caused(pods, "ns/a", rv, false, now); caused != want || want && by.SpanID() != span.SpanContext().SpanID() {
			t.Errorf("after the answer: the event at %s is caused %v by %v, want %v", rv, caused, by, want)
		}
	}
	if _, caused := writes.Caused(pods, "ns/a", "7", false, now.Add(2*time.Minute)); caused {
		t.Error("a write is known for two minutes")
	}
}

func TestWritesForgetTheOldestAndFollowOnlySoMany(t *testing.T) {
	t.Parallel()
	writes := tracing.NewWrites()
	tracer, _ := provider(sdktrace.WithSpanProcessor(writes))
	for i := range 1100 {
		_, span := tracer.Start(tracing.Root(t.Context()), "w", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			tracing.KeyVerb.String("update"), tracing.KeyCollection.String(pods), tracing.KeyKey.String("ns/a"), tracing.KeyRV.String(fmt.Sprint(i))))
		span.End()
	}
	now, followed := time.Now(), 0
	if _, caused := writes.Caused(pods, "ns/a", "0", false, now); caused {
		t.Error("the oldest of 1,100 writes is known")
	}
	for i := range 1100 {
		if _, caused := writes.Caused(pods, "ns/a", fmt.Sprint(i), false, now); caused {
			followed++
		}
	}
	if followed != 100 {
		t.Errorf("%d events are followed at once, want 100", followed)
	}
	if by, caused := writes.Caused(pods, "ns/a", "1099", true, now); !caused || !by.IsValid() {
		t.Error("an event that is recorded anyway is not linked to its write")
	}
	if _, caused := writes.Caused(pods, "ns/a", "1099", false, now.Add(time.Second)); !caused {
		t.Error("a second later none is followed")
	}
	var none *tracing.Writes
	if _, caused := none.Caused(pods, "ns/a", "1", false, now); caused {
		t.Error("nil knows a write")
	}
}

func TestAStormOfErrorsBeginsFewTraces(t *testing.T) {
	t.Parallel()
	errs, now, begun := tracing.NewErrors(), time.Now(), 0
	for i := range 10_000 {
		if errs.Allow(now.Add(time.Duration(i) * time.Millisecond)) {
			begun++
		}
	}
	if begun != 19 {
		t.Errorf("10,000 errors in 10 s began %d traces, want 10 at once and one a second", begun)
	}
}

func FuzzParent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0b-more")
	f.Fuzz(func(t *testing.T, text string) {
		ctx := propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": text})
		want := trace.SpanContextFromContext(ctx)
		if got := tracing.Parse(text); got.TraceID() != want.TraceID() || got.SpanID() != want.SpanID() {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
		if want.IsSampled() && !tracing.Sampled(text) {
			t.Errorf("%q is not taken for sampled", text)
		}
		if want.IsValid() && !want.IsSampled() && tracing.Sampled(text) {
			t.Errorf("%q is taken for sampled", text)
		}
		if got := tracing.Recorded(text); (got != "") != want.IsSampled() || got != "" && (len(got) != 55 || tracing.Parse(got).SpanID() != want.SpanID()) {
			t.Errorf("%q is recorded as %q", text, got)
		}
		parent, others := tracing.Split([]string{text})
		if parent.IsValid() != want.IsSampled() || len(others) > 0 && !want.IsValid() {
			t.Errorf("%q: parent %v, others %v", text, parent, others)
		}
	})
}
