package view

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// Reader shows a source to one subscription. It is safe for concurrent use.
type Reader interface {
	// Next is what has changed since the call before; nil for nothing. It waits for nobody.
	Next() *consolev1.OpenResponse
	// Close gives the source back.
	Close()
}

// every is how often what cannot be watched is asked.
const every = time.Second

// latest keeps the last state of a source for its readers.
type latest struct {
	mu      sync.Mutex
	state   *consolev1.OpenResponse // guarded by mu, never changed
	number  uint64                  // guarded by mu: of the state
	readers map[*latestReader]struct{}
}

func (l *latest) set(state *consolev1.OpenResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if proto.Equal(l.state, state) {
		return
	}
	l.state = state
	l.number++
	for r := range l.readers {
		r.changed()
	}
}

func (l *latest) fail(err error) { l.set(failed(err)) }

// read is a reader of the states; changed is called when there is another one.
func (l *latest) read(changed, release func()) Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &latestReader{l: l, changed: changed, release: release}
	if l.readers == nil {
		l.readers = map[*latestReader]struct{}{}
	}
	l.readers[r] = struct{}{}
	return r
}

type latestReader struct {
	l       *latest
	changed func()
	release func()
	seen    uint64
}

// Next implements [Reader].
func (r *latestReader) Next() *consolev1.OpenResponse {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.seen == r.l.number {
		return nil
	}
	r.seen = r.l.number
	return &consolev1.OpenResponse{Content: r.l.state.GetContent()}
}

// Close implements [Reader].
func (r *latestReader) Close() {
	r.l.mu.Lock()
	delete(r.l.readers, r)
	r.l.mu.Unlock()
	r.release()
}

// again is the part of a source that looks again and again.
type again struct {
	sooner chan struct{} // has something when it is to look without delay
}

func newAgain() again { return again{make(chan struct{}, 1)} }

func (a again) soon() {
	select {
	case a.sooner <- struct{}{}:
	default:
	}
}

// later takes back what soon asked for.
func (a again) later() {
	select {
	case <-a.sooner:
	default:
	}
}

// looks has look look until ctx ends. It returns when to look again.
func (a again) looks(ctx context.Context, look func(context.Context) (wait time.Duration)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-a.sooner:
		}
		timer.Reset(look(ctx))
	}
}

// pause waits for as long, unless it is to look without delay.
func (a again) pause(ctx context.Context, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-a.sooner:
	}
}

// poll asks again and again.
type poll struct {
	latest
	again
	ask   func(context.Context) (*consolev1.OpenResponse, error)
	every time.Duration
}

func newPoll(ask func(context.Context) (*consolev1.OpenResponse, error)) *poll {
	return &poll{again: newAgain(), ask: ask, every: every}
}

func (p *poll) run(ctx context.Context) { p.looks(ctx, p.look) }

func (p *poll) look(ctx context.Context) time.Duration {
	within, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	state, err := p.ask(within)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.fail(err)
	default:
		p.set(state)
	}
	return p.every
}

// polled is a reader of what is asked again and again, shared under a name.
func (h *Hub) polled(name string, changed func(), make func() *poll) (Reader, error) {
	s, release, err := h.share(name, func() source { return make() })
	if err != nil {
		return nil, err
	}
	return s.(*poll).read(changed, release), nil //nolint:forcetypeassert // a name has sources of one kind
}

// failed says that a view cannot be shown at present.
func failed(err error) *consolev1.OpenResponse {
	st := Status(err)
	return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Failure{Failure: &consolev1.Failure{
		Code: int32(st.Code()), Reason: rpc.Reason(st.Err()), Message: st.Message(), Retrying: true, //nolint:gosec // codes are small
	}}}
}

// Status is what a service said, without what was added to it on the way.
func Status(err error) *status.Status {
	if at, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return at.GRPCStatus()
	}
	return status.FromContextError(err)
}
