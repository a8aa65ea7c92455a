package tracing

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

const (
	// mostFlying is how many writes without an answer are known at once.
	mostFlying = 64
	// mostWritten is how many versions that were written are known, and writtenFor for how long.
	mostWritten = 1024
	writtenFor  = time.Minute
	// A controller that never comes to rest would have each of its writes followed.
	followedEach  = 100 * time.Millisecond
	followedBurst = 100
)

// Writes knows the sampled writes of a process, so that the reflector of the same process records
// their events: writes without an answer by collection and key, and the last 1,024 by the version
// that came of them, for a minute. It is a span processor of those who write. At most 10 events a
// second are followed, after 100 at once, which bounds chains of controllers that wake each other.
// A nil one knows nothing. It is safe for concurrent use.
type Writes struct {
	follow *rate.Limiter
	known  atomic.Int64 // writes in flying and written

	mu      sync.Mutex // guards the rest
	flying  []flying
	written map[version]trace.SpanContext
	order   []version // of written, the oldest first
	last    time.Time // when the last was answered
}

type flying struct {
	span            trace.SpanID
	collection, key string
}

type version struct{ collection, rv string }

// NewWrites knows no writes yet.
func NewWrites() *Writes {
	return &Writes{follow: rate.NewLimiter(rate.Every(followedEach), followedBurst), written: map[version]trace.SpanContext{}}
}

// Caused says whether an event is to be recorded because a sampled write seems to have caused it,
// and by which write, which is invalid while the write has no answer: it then links to the event.
// One that is sampled, and so recorded anyway, takes nothing of the rate.
func (w *Writes) Caused(collection, key, rv string, sampled bool, now time.Time) (write trace.SpanContext, caused bool) {
	if w == nil || w.known.Load() == 0 {
		return write, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) > 0 && now.Sub(w.last) > writtenFor {
		clear(w.written)
		w.order = nil
		w.count()
	}
	write, caused = w.written[version{collection, rv}]
	for i := 0; i < len(w.flying) && !caused; i++ {
		f := w.flying[i]
		// The name of what is created may be the server's to choose.
		caused = f.collection == collection && (f.key == key || f.key == "" || strings.HasSuffix(f.key, "/") && strings.HasPrefix(key, f.key))
	}
	if caused && !sampled && !w.follow.AllowN(now, 1) {
		return trace.SpanContext{}, false
	}
	return write, caused
}

// count must be called with mu held.
func (w *Writes) count() { w.known.Store(int64(len(w.flying) + len(w.order))) }

// OnStart implements [sdktrace.SpanProcessor].
func (w *Writes) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	verb, collection, key, _ := written(s)
	if verb == "" || collection == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.flying) < mostFlying {
		w.flying = append(w.flying, flying{s.SpanContext().SpanID(), collection, key})
		w.count()
	}
}

// OnEnd implements [sdktrace.SpanProcessor].
func (w *Writes) OnEnd(s sdktrace.ReadOnlySpan) {
	verb, collection, _, rv := written(s)
	if verb == "" || collection == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.count()
	for i := range w.flying {
		if w.flying[i].span == s.SpanContext().SpanID() {
			w.flying = append(w.flying[:i], w.flying[i+1:]...)
			break
		}
	}
	if rv == "" {
		return
	}
	v := version{collection, rv}
	if _, again := w.written[v]; !again {
		w.order = append(w.order, v)
	}
	w.written[v] = s.SpanContext()
	if s.EndTime().After(w.last) { // those of a failed run end in retrospect
		w.last = s.EndTime()
	}
	if len(w.order) > mostWritten {
		delete(w.written, w.order[0])
		w.order = append(w.order[:0], w.order[1:]...)
	}
}

// written reads the attributes of a write's span; verb is empty for any other.
func written(s sdktrace.ReadOnlySpan) (verb, collection, key, rv string) {
	if s.SpanKind() != trace.SpanKindClient {
		return
	}
	for _, a := range s.Attributes() {
		switch a.Key {
		case KeyVerb:
			verb = a.Value.AsString()
		case KeyCollection:
			collection = a.Value.AsString()
		case KeyKey:
			key = a.Value.AsString()
		case KeyRV:
			rv = a.Value.AsString()
		}
	}
	return verb, collection, key, rv
}

// Shutdown implements [sdktrace.SpanProcessor].
func (w *Writes) Shutdown(context.Context) error { return nil }

// ForceFlush implements [sdktrace.SpanProcessor].
func (w *Writes) ForceFlush(context.Context) error { return nil }
