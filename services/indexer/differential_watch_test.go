package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// fold adds up a watch's events. It reads unevenly, and its stream often ends.
type fold struct {
	p    *place
	rng  *rand.Rand
	req  *indexv1.WatchRequest
	want func(*version) bool

	mu     sync.Mutex // guards state
	state  map[string]string
	seen   map[string]bool // in the initial state under way; nil outside of one
	resume *deltav1.Position
}

// newFolds are watches of several selections, one for each treatment of slow readers.
func newFolds(p *place, seed uint64, i int) []*fold {
	var folds []*fold
	for j, slow := range []indexv1.WhenSlow{
		indexv1.WhenSlow_WHEN_SLOW_COALESCE, indexv1.WhenSlow_WHEN_SLOW_BOOTSTRAP, indexv1.WhenSlow_WHEN_SLOW_DISCONNECT,
	} {
		f := &fold{
			p: p, rng: rand.New(rand.NewPCG(seed, uint64(100+10*i+j))), state: map[string]string{},
			req: &indexv1.WatchRequest{Collection: "pods", WhenSlow: slow},
		}
		switch j {
		case 1:
			f.req.LabelSelector = "app=a"
			f.want = func(v *version) bool { return v.app == "a" }
		case 2:
			f.req.Index, f.req.IndexValue = "node", "n1"
			f.want = func(v *version) bool { return v.node == "n1" }
		}
		folds = append(folds, f)
	}
	return folds
}

func (f *fold) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := f.stream(ctx)
		if err != nil && !errors.Is(err, io.EOF) && !away(err) && !slow(err) {
			return fmt.Errorf("%s: watch %v: %w", f.p.name, f.req, err)
		}
		if !pause(ctx, time.Duration(f.rng.IntN(5))*time.Millisecond) {
			return nil
		}
	}
	return nil
}

func (f *fold) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.req.Resume = f.resume
	f.begin()
	s, err := f.p.now.Load().Watch(ctx, f.req)
	if err != nil {
		return err
	}
	for {
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		f.take(resp)
		switch f.rng.IntN(40) {
		case 0:
			return nil
		case 1:
			if !pause(ctx, time.Duration(f.rng.IntN(30))*time.Millisecond) {
				return nil
			}
		}
	}
}

// begin is the start of a stream: without a position a whole state follows.
func (f *fold) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = nil
	if f.resume == nil {
		f.seen = map[string]bool{}
	}
}

func (f *fold) take(resp *indexv1.WatchResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch k := resp.GetKind().(type) {
	case *indexv1.WatchResponse_Gap:
		f.seen, f.resume = map[string]bool{}, nil
	case *indexv1.WatchResponse_InitialStateEnd:
		for key := range f.state {
			if f.seen != nil && !f.seen[key] {
				delete(f.state, key)
			}
		}
		f.seen = nil
	case *indexv1.WatchResponse_Events:
		for _, e := range k.Events.GetEvents() {
			key := e.GetObject().GetKey()
			if e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED {
				delete(f.state, key)
				continue
			}
			f.state[key] = string(e.GetObject().GetPayload())
			if f.seen != nil {
				f.seen[key] = true
			}
		}
	}
	if p := resp.GetPosition(); p != nil {
		f.resume = p
	}
}

// awaitEqual waits until what was told adds up to what the source has.
func (f *fold) awaitEqual(t *testing.T, src *source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := f.equal(src)
		if err == nil {
			return
		}
		if !pause(ctx, 5*time.Millisecond) {
			t.Fatalf("%s: watch %v does not add up: %v", f.p.name, f.req, err)
		}
	}
}

func (f *fold) equal(src *source) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := src.latest()
	for key, v := range now {
		if f.want == nil || f.want(v) {
			if got, ok := f.state[key]; !ok || got != v.payload {
				return fmt.Errorf("%s: there %v, the source has %+v", key, ok, v)
			}
		}
	}
	for key := range f.state {
		if v := now[key]; v == nil || f.want != nil && !f.want(v) {
			return fmt.Errorf("%s is still there, the source has %+v", key, v)
		}
	}
	return nil
}

// slow reports whether a watch was ended for being slow.
func slow(err error) bool { return rpc.Reason(err) == "WATCHER_TOO_SLOW" }
