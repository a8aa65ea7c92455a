package informer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

// TestSharedInformerHandlerAbuse upstream: 100 goroutines add and remove handlers under events,
// gaps and resyncs, also while the informer stops. Each handler checks that what it receives fits
// together.
func TestHandlersComeAndGoUnderEvents(t *testing.T) {
	t.Parallel()
	src := newSource()
	i := create(t, src, func(c *informer.Config[*thing]) { c.Resync = time.Second })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	if err := informer.WaitFor(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	var told atomic.Int64
	var workers sync.WaitGroup
	for range 100 {
		workers.Go(func() {
			var regs []*informer.Registration
			for {
				<-time.After(rand.N(5 * time.Millisecond)) // events must have a turn
				if len(regs) == 0 || rand.IntN(2) == 0 && len(regs) < 2 {
					reg, err := i.AddHandler(newChecker(t, &told), informer.HandlerOptions{Resync: time.Second, Buffer: 1 + rand.IntN(50)})
					if errors.Is(err, informer.ErrStopped) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					regs = append(regs, reg)
					continue
				}
				n := rand.IntN(len(regs))
				i.RemoveHandler(regs[n], informer.Removal(rand.IntN(2)))
				if rand.IntN(4) == 0 {
					if err := regs[n].Wait(t.Context()); err != nil {
						t.Error(err)
					}
				}
				_ = regs[n].Lag()
				regs = append(regs[:n], regs[n+1:]...)
			}
		})
	}
	// On a busy machine all events may be over before the first handler has had its turn.
	deadline := time.Now().Add(time.Minute)
	for n := 0; n < 2_000 || told.Load() == 0 && time.Now().Before(deadline); n++ {
		if n >= 2_000 {
			<-time.After(time.Millisecond) // the handlers' turn
		}
		key := fmt.Sprintf("pod%d", rand.IntN(50))
		switch rand.IntN(8) {
		case 0:
			src.delete(key, client.DeleteObserved)
		case 1:
			src.setUID(key, fmt.Sprintf("uid-%d", n), "")
		default:
			src.set(key, "")
		}
		if n%200 == 0 {
			src.unheard(func() { src.set(key, "") })
			src.lose(n%400 == 0)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	workers.Wait()
	if told.Load() == 0 {
		t.Error("no handler received anything")
	}
}

// newChecker is a handler that knows of each key what it received last.
func newChecker(t *testing.T, told *atomic.Int64) informer.Handler[*thing] {
	t.Helper()
	known := map[string]*thing{}
	return informer.HandlerFuncs[*thing]{
		AddFunc: func(o *thing, _ bool) {
			told.Add(1)
			if known[o.key] != nil {
				t.Errorf("add of %s@%s, of which %s is known", o.key, o.rv, known[o.key].rv)
			}
			known[o.key] = o
		},
		UpdateFunc: func(old, o *thing) {
			told.Add(1)
			if known[o.key] != old || old.uid != o.uid {
				t.Errorf("update of %s from %s (%s) to %s (%s), but %+v is known", o.key, old.rv, old.uid, o.rv, o.uid, known[o.key])
			}
			known[o.key] = o
		},
		DeleteFunc: func(d informer.Deletion[*thing]) {
			told.Add(1)
			if have := known[d.Key]; have == nil || have.uid != d.UID {
				t.Errorf("deletion of %s (%s), but %+v is known", d.Key, d.UID, have)
			}
			delete(known, d.Key)
		},
	}
}
