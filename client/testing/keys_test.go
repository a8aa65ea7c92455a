package testing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// run is a reconcile as a test sees it.
type run struct {
	nth  int
	ctx  context.Context //nolint:containedctx // of the reconcile
	item client.Item
}

// work adds a key to a queue and reconciles it until nothing more will run.
func work(t *testing.T, env *dptest.Env, rec func(run) (client.Result, error)) []run {
	t.Helper()
	var mu sync.Mutex
	var runs []run
	q := client.NewQueue(env.Queue(), "dev/test", "")
	if _, err := q.Configure(t.Context(), client.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	w, err := client.NewWorker(env.Queue(), client.ReconcilerFunc(func(ctx context.Context, item client.Item) (client.Result, error) {
		mu.Lock()
		r := run{len(runs) + 1, ctx, item}
		runs = append(runs, r)
		mu.Unlock()
		return rec(r)
	}), client.WorkerConfig{Queue: "dev/test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	env.Go(w.Run)
	if _, err := q.Add(t.Context(), client.Keys("ns/a")...); err != nil {
		t.Fatal(err)
	}
	if err := env.Settled(within(t)); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return runs
}

func TestAKeyWhoseLeaseIsLostRunsAgain(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Rates: only(func(r *dptest.Rates) { r.LostLeases = 1 })})
	runs := work(t, env, func(r run) (client.Result, error) {
		if r.nth == 1 {
			<-r.ctx.Done()
			env.Calm()
			return client.Result{}, context.Cause(r.ctx)
		}
		return client.Result{}, nil
	})
	if cause := context.Cause(runs[0].ctx); !errors.Is(cause, client.ErrLeaseLost) {
		t.Errorf("the first run ended by %v, want a lost lease", cause)
	}
	if len(runs) < 2 {
		t.Errorf("the key ran %d times", len(runs))
	}
}

func TestNothingIsKnownOfAKilledWorkersRun(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Rates: only(func(r *dptest.Rates) { r.KilledWorkers = 1 })})
	wrote := client.Barrier{"dev/pods.v1": {Epoch: 1, RV: "1000000"}}
	runs := work(t, env, func(r run) (client.Result, error) {
		if r.nth == 3 {
			env.Calm()
		}
		return client.Result{Wrote: wrote}, nil
	})
	if len(runs) != 3 {
		t.Fatalf("the key ran %d times, want two runs of killed workers and one more", len(runs))
	}
	for _, r := range runs {
		if len(r.item.Barrier) != 0 {
			t.Errorf("run %d has the barrier %v of a run that was not settled", r.nth, r.item.Barrier)
		}
	}
}

func TestASettledKeyIsAddedAgain(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Rates: only(func(r *dptest.Rates) { r.DuplicateKeys = 1 })})
	runs := work(t, env, func(r run) (client.Result, error) {
		if r.nth == 4 {
			env.Calm()
		}
		return client.Result{}, nil
	})
	if len(runs) != 4 {
		t.Errorf("the key ran %d times, want three duplicates", len(runs))
	}
}

func TestWhatABrokenConnectionCarriedIsNotLost(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Resources: mirrored, Rates: only(func(r *dptest.Rates) { r.BrokenStreams, r.LateKeys = 0.3, 0.3 })})
	const n = 20
	seen, broke := make(chan string, 1000), make(chan struct{}, 1000)
	env.Go(func(ctx context.Context) error {
		for e, err := range client.NewIndex(env.Index()).Watch(ctx, "configmaps", client.WatchOptions{
			Log: slog.New(slog.DiscardHandler), OnRetry: func(client.WatchRetry) { broke <- struct{}{} },
		}) {
			if err != nil {
				return err
			}
			if e.Object.Key != "" {
				seen <- e.Object.Key
			}
		}
		return nil
	})
	for i := range n {
		env.Apply(configMap(fmt.Sprint("c", i), "red"))
	}
	missing := map[string]bool{}
	for i := range n {
		missing[fmt.Sprint("default/c", i)] = true
	}
	for ctx := within(t); len(missing) > 0; {
		select {
		case key := <-seen:
			delete(missing, key)
		case <-ctx.Done():
			t.Fatalf("the watch did not tell of %v", missing)
		}
	}
	runs := work(t, env, func(run) (client.Result, error) { return client.Result{}, nil })
	if len(runs) == 0 {
		t.Error("a key was lost")
	}
	if done := dptest.Summary(env); !strings.Contains(done, "broken streams") || len(broke) == 0 {
		t.Errorf("the watch broke %d times, %s", len(broke), done)
	}
}
