package rpc

import (
	"context"
	"sync"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/roundrobin"
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

// Leave lets the next call go to any server, which is the place from then on.
func (p *Place) Leave() { p.set(nil) }

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
	for n := 0; err == nil && v.want != nil && got.SubConn != v.want && got.Done == nil && n < mostTurns; n++ {
		got, err = p.Picker.Pick(info)
	}
	if err != nil {
		return got, err
	}
	v.want = nil
	v.place.set(got.SubConn)
	return got, nil
}
