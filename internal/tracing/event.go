package tracing

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Collection is the name of a collection, "cluster/resource.version[.group]", made ready for
// [Collection.Event].
type Collection uint64

// CollectionOf makes a name ready.
func CollectionOf(name string) Collection { return Collection(hash(hashStart, name)) }

// Event is the identity of the span that the reflector makes of an event of the collection, which
// is the root of its trace: the same in every process. Whether it is recorded is another matter.
func (c Collection) Event(rv string) Identity {
	h := hash(uint64(c), rv)
	return Identity{high: mix(h), low: mix(h + 1), span: mix(h+2) | 1}
}

// EventOf is [Collection.Event] of a collection by its name.
func EventOf(collection, rv string) Identity { return CollectionOf(collection).Event(rv) }

// Identity is that of a trace's root.
type Identity struct{ high, low, span uint64 }

// Context is the root as others refer to it.
func (i Identity) Context(sampled bool) trace.SpanContext {
	c := trace.SpanContextConfig{TraceID: i.trace(), SpanID: i.root(), Remote: true}
	if sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c)
}

func (i Identity) trace() (id trace.TraceID) {
	binary.BigEndian.PutUint64(id[:8], i.high)
	binary.BigEndian.PutUint64(id[8:], i.low|1)
	return id
}

func (i Identity) root() (id trace.SpanID) {
	binary.BigEndian.PutUint64(id[:], i.span)
	return id
}

// Ratio is the share of events that are sampled. Its zero value is none.
type Ratio struct{ below uint64 }

// RatioOf is a share from 0 to 1.
func RatioOf(share float64) Ratio {
	switch {
	case share >= 1:
		return Ratio{math.MaxUint64}
	case share > 0:
		return Ratio{uint64(share * (1 << 63) * 2)}
	}
	return Ratio{}
}

// Samples says whether an event is sampled. All processes of one ratio say the same.
func (r Ratio) Samples(i Identity) bool { return r.below > 0 && i.high <= r.below }

// FNV-1a, which needs no memory, and a finalizer that spreads what differs in few bits.
const (
	hashStart uint64 = 14695981039346656037
	hashPrime uint64 = 1099511628211
)

func hash(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * hashPrime
	}
	return (h ^ 0xff) * hashPrime
}

func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

type rootKey struct{}

// Root is ctx for a span that begins a trace which is recorded whatever the share is. The span is
// to be started with trace.WithNewRoot where ctx may have a span.
func Root(ctx context.Context) context.Context {
	return context.WithValue(ctx, rootKey{}, Identity{})
}

// RootOf is [Root] for a trace of a given identity.
func RootOf(ctx context.Context, i Identity) context.Context {
	return context.WithValue(ctx, rootKey{}, i)
}

// NewSampler records spans whose parent is recorded, those of [Root], and no others.
func NewSampler() sdktrace.Sampler { return sampler{} }

type sampler struct{}

// ShouldSample implements [sdktrace.Sampler].
func (sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanContextFromContext(p.ParentContext)
	result := sdktrace.SamplingResult{Decision: sdktrace.Drop, Tracestate: parent.TraceState()}
	_, root := p.ParentContext.Value(rootKey{}).(Identity)
	if parent.IsSampled() || root && !parent.IsValid() {
		result.Decision = sdktrace.RecordAndSample
	}
	return result
}

// Description implements [sdktrace.Sampler].
func (sampler) Description() string { return "Deltaplane" }

// NewIDs makes random ids, but those of [RootOf].
func NewIDs() sdktrace.IDGenerator { return ids{} }

type ids struct{}

// NewIDs implements [sdktrace.IDGenerator].
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	i, _ := ctx.Value(rootKey{}).(Identity)
	if i == (Identity{}) {
		i = Identity{high: rand.Uint64(), low: rand.Uint64(), span: rand.Uint64() | 1} //nolint:gosec // an id, no secret
	}
	return i.trace(), i.root()
}

// NewSpanID implements [sdktrace.IDGenerator].
func (ids) NewSpanID(context.Context, trace.TraceID) trace.SpanID {
	return Identity{span: rand.Uint64() | 1}.root() //nolint:gosec // an id, no secret
}
