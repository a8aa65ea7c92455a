package informer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

// Code that waits for client-go's informers waits for these too.
var (
	_ cache.DoneChecker = (*informer.Shared[*thing])(nil)
	_ cache.DoneChecker = (*informer.Registration)(nil)
	_ informer.Source   = (*client.Index)(nil)
)

func TestAFactorySharesInformersOfOneScope(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		f := informer.NewFactory(src, informer.FactoryConfig{Resync: time.Hour})
		get := func(c informer.Config[*thing]) *informer.Shared[*thing] {
			t.Helper()
			c.Collection, c.Decode = "dev/things.v1", decode
			i, err := informer.For(f, c)
			if err != nil {
				t.Fatal(err)
			}
			return i
		}
		all := get(informer.Config[*thing]{})
		if again := get(informer.Config[*thing]{View: client.ViewFull, Indexers: map[string]informer.IndexFunc[*thing]{"labels": byLabel}}); again != all {
			t.Error("the same is not shared")
		}
		if got := all.Store().Indexers(); len(got) != 1 {
			t.Errorf("indexers %q, want that of the second", got)
		}
		if all.Status().ResyncCheck != time.Hour {
			t.Error("the factory's resync is not used")
		}
		ab := get(informer.Config[*thing]{Scope: informer.Scope{Namespaces: []string{"a", "b"}}})
		if ba := get(informer.Config[*thing]{Scope: informer.Scope{Namespaces: []string{"b", "a"}}}); ba != ab {
			t.Error("the same namespaces in another order are not shared")
		}
		others := []*informer.Shared[*thing]{all, ab, get(informer.Config[*thing]{Scope: informer.Scope{Labels: "a=b"}}), get(informer.Config[*thing]{View: client.ViewMetadata})}
		for n, i := range others {
			for _, j := range others[n+1:] {
				if i == j {
					t.Error("different scopes are shared")
				}
			}
		}
		raw, err := informer.For(f, informer.Config[client.Object]{Collection: "dev/things.v1"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := informer.For(f, informer.Config[*thing]{Collection: "x"}); err == nil {
			t.Error("a config with faults is accepted")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f.Start(ctx)
		f.Start(ctx) // what runs goes on
		if err := f.WaitForSync(ctx); err != nil {
			t.Error(err)
		}
		if !all.HasSynced() || !raw.HasSynced() {
			t.Error("not synced after WaitForSync")
		}
		late, err := informer.For(f, informer.Config[*thing]{Collection: "late", Decode: decode})
		if err != nil {
			t.Fatal(err)
		}
		f.Start(ctx)
		<-late.Done()
		if len(src.asked) != 6 {
			t.Errorf("%d watches, want one for each of 6", len(src.asked))
		}
		cancel()
		f.Wait()
	})
}

type checker struct {
	name string
	done chan struct{}
}

func (c checker) Name() string          { return c.name }
func (c checker) Done() <-chan struct{} { return c.done }

// TestWaitFor upstream, where the names are logged and not returned. A negative delay is never.
func TestWaitForNamesWhatIsNotSynced(t *testing.T) {
	t.Parallel()
	errFish := errors.New("go fish")
	for name, c := range map[string]struct {
		delays  map[string]time.Duration
		timeout time.Duration // negative: the context has ended before
		reason  error
		want    []string
		took    time.Duration
	}{
		"empty":         {},
		"in their time": {delays: map[string]time.Duration{"first": 10 * time.Second, "second": 5 * time.Second, "last": 0}, took: 10 * time.Second},
		"some-timeout":  {delays: map[string]time.Duration{"first": 10 * time.Second, "second": -1, "last": 0}, timeout: time.Minute, want: []string{"second"}, took: time.Minute},
		"some-canceled": {delays: map[string]time.Duration{"first": 10 * time.Second, "second": -1, "last": 0}, timeout: -1, want: []string{"first", "second"}},
		"more":          {delays: map[string]time.Duration{"first": 10 * time.Second, "second": -1, "last": 0}, timeout: 5 * time.Second, reason: errFish, want: []string{"first", "second"}, took: 5 * time.Second},
		"all":           {delays: map[string]time.Duration{"first": -1, "second": -1, "last": -1}, timeout: time.Minute, want: []string{"first", "last", "second"}, took: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var all []informer.Waitable
				for name, delay := range c.delays {
					w := checker{name, make(chan struct{})}
					all = append(all, w)
					switch {
					case delay == 0:
						close(w.done)
					case delay > 0:
						time.AfterFunc(delay, func() { close(w.done) })
					}
				}
				why := c.reason
				if why == nil {
					why = context.DeadlineExceeded
				}
				switch {
				case c.timeout < 0:
					cancel(why)
				case c.timeout > 0:
					time.AfterFunc(c.timeout, func() { cancel(why) })
				}
				began := time.Now()
				err := informer.WaitFor(ctx, all...)
				if took := time.Since(began); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				var got []string
				if missing, ok := errors.AsType[*informer.NotSyncedError](err); ok {
					got = missing.Names
					if !errors.Is(err, why) {
						t.Errorf("error %v does not wrap %v", err, why)
					}
				} else if err != nil {
					t.Errorf("error %v", err)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("missing (-want +got)\n%s", diff)
				}
				after(time.Minute) // timers end
			})
		})
	}
}
