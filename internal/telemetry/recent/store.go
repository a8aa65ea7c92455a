package recent

import (
	"context"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The bounds of a [Store].
const (
	// MaxTraces is how many traces are kept.
	MaxTraces = 1000
	// MaxBytes is about how many bytes they take.
	MaxBytes = 16 << 20
	// MaxSpans is how many spans of a trace are kept, and MaxText how many bytes of a text.
	MaxSpans = 500
	MaxText  = 1 << 10
)

// Store keeps the last traces. It is a span processor, of any number of providers. It is safe for
// concurrent use.
type Store struct {
	traces, bytes int // bounds

	mu    sync.Mutex // guards the rest
	byID  map[string]*stored
	order []*stored // by when their first span came, the oldest first
	held  int       // bytes
}

// New makes a store with the bounds above.
func New() *Store { return newStore(MaxTraces, MaxBytes) }

func newStore(traces, bytes int) *Store {
	return &Store{traces: traces, bytes: bytes, byID: map[string]*stored{}}
}

// OnStart implements [sdktrace.SpanProcessor].
func (*Store) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements [sdktrace.SpanProcessor].
func (s *Store) OnEnd(ended sdktrace.ReadOnlySpan) {
	if !ended.SpanContext().IsSampled() {
		return
	}
	id, span := ended.SpanContext().TraceID().String(), spanOf(ended)
	size := span.size()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byID[id]
	if t == nil {
		t = &stored{id: id}
		s.byID[id] = t
		s.order = append(s.order, t)
	}
	if len(t.spans) >= MaxSpans || t.bytes+size > s.bytes {
		t.dropped++
		return
	}
	t.spans = append(t.spans, span)
	t.bytes += size
	s.held += size
	for len(s.order) > s.traces || s.held > s.bytes {
		oldest := s.order[0]
		if oldest == t && len(s.order) > 1 { // its span is new, whenever the trace began
			oldest, s.order[1] = s.order[1], t
		}
		s.order[0] = nil
		s.order = s.order[1:]
		s.held -= oldest.bytes
		delete(s.byID, oldest.id)
	}
}

// List are the traces that a filter chooses, the newest first.
func (s *Store) List(f Filter) []Summary {
	s.mu.Lock()
	kept := make([]stored, len(s.order)) // spans that are there do not change
	for i, t := range s.order {
		kept[i] = *t
	}
	s.mu.Unlock()
	out := []Summary{}
	for i := len(kept) - 1; i >= 0 && (f.Limit <= 0 || len(out) < f.Limit); i-- {
		if t := &kept[i]; len(t.spans) > 0 {
			if sum := t.summary(); t.chosen(f, sum) {
				out = append(out, sum)
			}
		}
	}
	return out
}

// Get is a trace by its id; false when it is not kept.
func (s *Store) Get(id string) (Trace, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byID[id]
	if t == nil || len(t.spans) == 0 {
		return Trace{}, false
	}
	out := Trace{Summary: t.summary(), Spans: t.tree()}
	for i, span := range out.Spans {
		links := make([]Link, len(span.Links)) // those of the store are shared
		for j, l := range span.Links {
			l.Kept = s.byID[l.Trace] != nil
			links[j] = l
		}
		out.Spans[i].Links = links
	}
	for _, other := range s.order {
		for _, span := range other.spans {
			for _, l := range span.Links {
				if l.Trace == id && other != t {
					out.LinkedFrom = append(out.LinkedFrom, Link{Trace: other.id, Span: span.ID, Kept: true, Attributes: l.Attributes})
				}
			}
		}
	}
	return out, true
}

// Shutdown implements [sdktrace.SpanProcessor]. It keeps what is there: a service that ends is one
// of several.
func (*Store) Shutdown(context.Context) error { return nil }

// ForceFlush implements [sdktrace.SpanProcessor].
func (*Store) ForceFlush(context.Context) error { return nil }

func spanOf(s sdktrace.ReadOnlySpan) Span {
	out := Span{
		ID: s.SpanContext().SpanID().String(), Name: clip(s.Name()), Start: s.StartTime(), End: s.EndTime(), Attributes: texts(s.Attributes()),
		Failed: s.Status().Code == codes.Error, Status: clip(s.Status().Description),
	}
	if s.Parent().IsValid() {
		out.Parent = s.Parent().SpanID().String()
	}
	if v, ok := s.Resource().Set().Value("service.name"); ok {
		out.Service = clip(v.String())
	}
	for _, event := range s.Events() {
		for _, a := range event.Attributes {
			if a.Key == "exception.message" {
				out.Failed, out.Status = true, clip(a.Value.String())
			}
		}
	}
	for _, l := range s.Links() {
		out.Links = append(out.Links, linkOf(l.SpanContext, l.Attributes))
	}
	return out
}

func linkOf(to trace.SpanContext, attrs []attribute.KeyValue) Link {
	return Link{Trace: to.TraceID().String(), Span: to.SpanID().String(), Attributes: texts(attrs)}
}

func texts(attrs []attribute.KeyValue) map[string]string {
	if len(attrs) == 0 {
		return nil
	}
	out := make(map[string]string, len(attrs))
	for _, a := range attrs {
		out[clip(string(a.Key))] = clip(a.Value.String())
	}
	return out
}

// clip is a text of at most [MaxText] bytes that is valid in a message.
func clip(s string) string {
	if len(s) > MaxText {
		s = strings.Clone(s[:MaxText]) // the rest must not stay in memory
	}
	return strings.ToValidUTF8(s, "?")
}

// size is about what a span takes.
func (s *Span) size() int {
	n := 300 + len(s.Name) + len(s.Service) + len(s.Status) + textSize(s.Attributes)
	for _, l := range s.Links {
		n += 150 + textSize(l.Attributes)
	}
	return n
}

func textSize(m map[string]string) int {
	n := 0
	for k, v := range m {
		n += 50 + len(k) + len(v)
	}
	return n
}
