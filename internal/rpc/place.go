package rpc

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Place is one of the servers of a connection of [Dial], to which later calls
// can return, for what only that server has. The zero value is no server yet. It
// is safe for concurrent use.
type Place struct {
	mu sync.Mutex
	at balancer.SubConn
}

// Call returns the context of one call that goes to the server of the call before
// it, while that is connected, and else to any, which is the place from then on.
// So do attempts after the call's first. Connections of others ignore it.
func (p *Place) Call(ctx context.Context) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return context.WithValue(ctx, visitKey{}, &visit{place: p, want: p.at})
}

// Elsewhere returns the context of one call that goes to none of the servers of
// other places, and whose server is p from then on. It fails with CANCELLED, without
// being sent, where no other server is connected. It is false when one of the places
// has no server yet, or there are none.
func (p *Place) Elsewhere(ctx context.Context, others ...*Place) (context.Context, bool) {
	v := &visit{place: p}
	for _, o := range others {
		at := o.server()
		if at == nil {
			return ctx, false
		}
		v.avoid = append(v.avoid, at)
	}
	return context.WithValue(ctx, visitKey{}, v), len(others) > 0
}

// Move makes the server of another place that of p.
func (p *Place) Move(to *Place) {
	if at := to.server(); at != p.server() {
		p.set(at)
	}
}

// PlaceOf is the place of a call with the context; nil when it has none.
func PlaceOf(ctx context.Context) *Place {
	if v, ok := ctx.Value(visitKey{}).(*visit); ok {
		return v.place
	}
	return nil
}

// Apart reports whether a call with the context must not go to the server of a place
// that it is not at.
func Apart(ctx context.Context, at *Place) bool {
	v, ok := ctx.Value(visitKey{}).(*visit)
	if !ok {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.avoid) > 0 || v.want != nil && v.want != at.server()
}

// Leave lets the next call go to any server, which is the place from then on.
func (p *Place) Leave() { p.set(nil) }

func (p *Place) server() balancer.SubConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *Place) set(at balancer.SubConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = at
}

// visit is one call of a place.
type visit struct {
	place *Place
	mu    sync.Mutex
	want  balancer.SubConn // for the first attempt
	avoid []balancer.SubConn
}

type visitKey struct{}

// placing is round robin that lets calls return to their place.
const placing = "deltaplane_round_robin"

func init() { balancer.Register(placer{}) }

type placer struct{}

// Name implements balancer.Builder.
func (placer) Name() string { return placing }

// Build implements balancer.Builder.
func (placer) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	return balancer.Get(roundrobin.Name).Build(placedConn{cc}, opts)
}

// placedConn is what round robin tells of its servers.
type placedConn struct{ balancer.ClientConn }

// UpdateState implements balancer.ClientConn.
func (c placedConn) UpdateState(s balancer.State) {
	s.Picker = placedPicker{s.Picker}
	c.ClientConn.UpdateState(s)
}

type placedPicker struct{ balancer.Picker }

// mostTurns bounds how often round robin is asked for one call.
const mostTurns = 256

// Pick implements balancer.Picker.
func (p placedPicker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	v, ok := info.Ctx.Value(visitKey{}).(*visit)
	if !ok {
		return p.Picker.Pick(info)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	got, err := p.Picker.Pick(info)
	for n := 0; err == nil && !v.likes(got.SubConn) && got.Done == nil && n < mostTurns; n++ {
		got, err = p.Picker.Pick(info)
	}
	if err != nil {
		return got, err
	}
	if slices.Contains(v.avoid, got.SubConn) {
		return balancer.PickResult{}, errNowhereElse
	}
	v.want = nil
	v.place.set(got.SubConn)
	return got, nil
}

// errNowhereElse ends a call at once: codes that mean trouble would be tried again.
var errNowhereElse = status.Error(codes.Canceled, "rpc: no other server is connected")

func (v *visit) likes(at balancer.SubConn) bool {
	return (v.want == nil || at == v.want) && !slices.Contains(v.avoid, at)
}
