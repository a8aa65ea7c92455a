package recent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func tracerInto(s *Store, service string) trace.Tracer {
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service)))).Tracer("t")
}

// span makes one that takes from and to milliseconds.
func span(ctx context.Context, t trace.Tracer, name string, from, to int, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	ctx, s := t.Start(ctx, name, append(o, trace.WithTimestamp(at(from)))...)
	s.End(trace.WithTimestamp(at(to)))
	return ctx, s
}

func TestATraceOfSeveralServicesIsOneTree(t *testing.T) {
	t.Parallel()
	s := New()
	reflector, controllers := tracerInto(s, "reflector"), tracerInto(s, "controllers")
	root, event := span(t.Context(), reflector, "event", 0, 5, trace.WithAttributes(attribute.String("deltaplane.key", "ns/a")))
	run, _ := span(root, controllers, "reconcile", 10, 30)
	_, failed := controllers.Start(run, "update pods.v1", trace.WithTimestamp(began.Add(20*time.Millisecond)))
	failed.SetStatus(codes.Error, "409 Conflict")
	failed.End(trace.WithTimestamp(began.Add(25 * time.Millisecond)))
	span(run, controllers, "get", 12, 13)
	span(root, reflector, "publish", 1, 5)
	_, next := span(t.Context(), reflector, "event", 40, 41, trace.WithLinks(trace.Link{SpanContext: failed.SpanContext()}))

	got, ok := s.Get(event.SpanContext().TraceID().String())
	if !ok {
		t.Fatal("the trace is not kept")
	}
	var tree strings.Builder
	for _, sp := range got.Spans {
		fmt.Fprintf(&tree, "%s%s/%s %v\n", strings.Repeat(" ", sp.Depth), sp.Service, sp.Name, sp.Failed)
	}
	if want := "reflector/event false\n reflector/publish false\n controllers/reconcile false\n  controllers/get false\n  controllers/update pods.v1 true\n"; tree.String() != want {
		t.Errorf("the tree is\n%swant\n%s", tree.String(), want)
	}
	if got.Name != "event ns/a" || got.Duration != 30*time.Millisecond || got.Summary.Spans != 5 || got.Errors != 1 {
		t.Errorf("summary %+v", got.Summary)
	}
	nextID := next.SpanContext().TraceID().String()
	if len(got.LinkedFrom) != 1 || got.LinkedFrom[0].Trace != nextID {
		t.Errorf("linked from %v, want %s", got.LinkedFrom, nextID)
	}
	if linked, _ := s.Get(nextID); len(linked.Spans) != 1 || len(linked.Spans[0].Links) != 1 || !linked.Spans[0].Links[0].Kept {
		t.Errorf("the next trace is %+v", linked)
	}
	if _, ok := s.Get("nothing"); ok {
		t.Error("a trace of no id is kept")
	}
}

func TestTheLastTracesAreKeptAndTheOldestGoesFirst(t *testing.T) {
	t.Parallel()
	s := New()
	tracer := tracerInto(s, "x")
	for i := range MaxTraces + 50 {
		span(t.Context(), tracer, fmt.Sprint("trace ", i), i, i+1)
	}
	all := s.List(Filter{})
	if len(all) != MaxTraces || all[0].Name != "trace 1049" || all[MaxTraces-1].Name != "trace 50" {
		t.Errorf("%d are kept, from %s to %s", len(all), all[0].Name, all[len(all)-1].Name)
	}
	if len(s.byID) != MaxTraces {
		t.Errorf("%d ids are kept", len(s.byID))
	}
}

func TestBytesAreBoundedWhateverSpansHold(t *testing.T) {
	t.Parallel()
	const bound = 100 << 10
	s := newStore(1000, bound)
	tracer := tracerInto(s, "x")
	long := attribute.String("long", strings.Repeat("x", 1<<20))
	for range 300 {
		span(t.Context(), tracer, "long", 0, 1, trace.WithAttributes(long))
	}
	ctx, _ := span(t.Context(), tracer, "root", 0, 1)
	for range 2 * MaxSpans {
		span(ctx, tracer, "child", 0, 1, trace.WithAttributes(long))
	}
	sum := 0
	for _, kept := range s.order {
		sum += kept.bytes
	}
	if s.held > bound || sum != s.held {
		t.Errorf("%d bytes are counted and %d held, of at most %d", s.held, sum, bound)
	}
	newest := s.List(Filter{Limit: 1})
	if len(newest) != 1 || newest[0].Name != "root" || newest[0].Dropped == 0 || newest[0].Spans+newest[0].Dropped != 2*MaxSpans+1 {
		t.Errorf("the newest is %+v", newest)
	}
}

func TestFiltersChooseByTextErrorAndDuration(t *testing.T) {
	t.Parallel()
	s := New()
	tracer := tracerInto(s, "Queue")
	span(t.Context(), tracer, "short", 0, 1, trace.WithAttributes(attribute.String("deltaplane.key", "ns/Alpha")))
	span(t.Context(), tracer, "long", 0, 100)
	_, bad := tracer.Start(t.Context(), "bad", trace.WithTimestamp(began))
	bad.RecordError(errors.New("no such thing"))
	bad.End(trace.WithTimestamp(began.Add(2 * time.Millisecond)))
	for name, c := range map[string]struct {
		f    Filter
		want string
	}{
		"all":      {want: "bad long short ns/Alpha"},
		"text":     {f: Filter{Text: "alpha"}, want: "short ns/Alpha"},
		"error":    {f: Filter{Failed: true}, want: "bad"},
		"why":      {f: Filter{Text: "SUCH THING"}, want: "bad"},
		"duration": {f: Filter{AtLeast: 50 * time.Millisecond}, want: "long"},
		"service":  {f: Filter{Text: "queue", Limit: 2}, want: "bad long"},
		"none":     {f: Filter{Text: "beta"}},
	} {
		var names []string
		for _, sum := range s.List(c.f) {
			names = append(names, sum.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestManyProvidersWriteAndReadAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(50, 1<<20)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			tracer := tracerInto(s, fmt.Sprint(i))
			for range 300 {
				ctx, root := span(t.Context(), tracer, "root", 0, 1)
				span(ctx, tracer, "child", 0, 1, trace.WithLinks(trace.Link{SpanContext: root.SpanContext()}))
				s.List(Filter{Text: "child"})
				s.Get(root.SpanContext().TraceID().String())
			}
		})
	}
	all.Wait()
	if len(s.order) != 50 || len(s.byID) != 50 {
		t.Errorf("%d and %d are kept", len(s.order), len(s.byID))
	}
}

func TestSpansThatAreEachOthersAncestorsAreInTheTree(t *testing.T) {
	t.Parallel()
	loop := &stored{id: "x", spans: []Span{{ID: "a", Parent: "b"}, {ID: "b", Parent: "a"}, {ID: "c", Parent: "c"}}}
	if got := loop.tree(); len(got) != 3 {
		t.Errorf("%v", got)
	}
}

func TestTextsAreValidHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\xffb": "a?b",
		strings.Repeat("x", MaxText-1) + "\u00e9": strings.Repeat("x", MaxText-1) + "?",
		"\u00e9": "\u00e9",
	} {
		if got := clip(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
