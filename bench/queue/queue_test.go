package queue

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// testLoad drives a queue of a memory engine in this process.
func testLoad(t *testing.T) *driver {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := system.QueueServer(ctx, json.RawMessage(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := load.Dial(s.Info.(system.QueueServerInfo).Queue, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := p.Close()
		cancel()
		if err := errors.Join(err, s.Stop()); err != nil {
			t.Error(err)
		}
	})
	l := newDriver(p, "bench/test")
	if err := l.configure(t.Context(), &queuev1.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestTheBooksOfEveryKindOfLoadBalance(t *testing.T) {
	t.Parallel()
	l := testLoad(t)
	for name, m := range map[string]mix{
		"one stream": {inFlight: 50}, "several": {inFlight: 50, streams: 3}, "rich": {inFlight: 50, rich: true}, "paired": {inFlight: 50, paired: true},
	} {
		const d = 500 * time.Millisecond
		got, err := l.run(t.Context(), d, m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Done == 0 || got.Elapsed < d {
			t.Errorf("%s: %d cycles in %v", name, got.Done, got.Elapsed)
		}
		if err := l.balance(t.Context(), 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.storm(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := l.balance(t.Context(), 0); !errors.Is(err, load.ErrBooks) {
		t.Errorf("the books balance although the storm's keys are left: %v", err)
	}
	if err := errors.Join(l.drain(t.Context()), l.balance(t.Context(), 0)); err != nil {
		t.Error(err)
	}
}

func TestABacklogStaysWhileCyclesGoThroughIt(t *testing.T) {
	t.Parallel()
	l := testLoad(t)
	if err := l.fill(t.Context(), 700, mix{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.fill(t.Context(), 300, mix{}, func() time.Duration { return time.Hour }); err != nil {
		t.Fatal(err)
	}
	if _, err := l.run(t.Context(), 50*time.Millisecond, mix{inFlight: 50, paired: true}); err != nil {
		t.Fatal(err)
	}
	n, err := l.left(t.Context())
	if err != nil || n.GetReady() != 700 || n.GetDelayed() != 300 {
		t.Errorf("left %v, %v, want 700 ready and 300 delayed", n, err)
	}
	if err := l.balance(t.Context(), 700); err != nil {
		t.Error(err)
	}
}

func TestLatenciesAreThoseOfAllKeys(t *testing.T) {
	t.Parallel()
	l := testLoad(t)
	h, err := l.latency(t.Context(), 100*time.Millisecond)
	if want := int64(latencyRate / 10); err != nil || h.Count() != want {
		t.Errorf("%d latencies, %v, want %d", h.Count(), err, want)
	}
	late, early, err := l.timers(t.Context(), 50*time.Millisecond)
	if want := int64(timerRate / 20); err != nil || late.Count() != want || early != 0 {
		t.Errorf("%d timers, %d early, %v, want %d", late.Count(), early, err, want)
	}
	if err := l.balance(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

func TestKeysHave23BytesAndKeepTheirNumber(t *testing.T) {
	t.Parallel()
	for _, n := range []uint64{0, 1, 10, 99_999_999_999_999_999} {
		if key := benchKey(n); len(key) != 23 || sequence(key) != n {
			t.Errorf("key of %d is %q, number %d", n, key, sequence(key))
		}
	}
}

func TestOnTimeNeitherHurriesNorSkips(t *testing.T) {
	t.Parallel()
	began := time.Now()
	at := func(i int) time.Time { return began.Add(time.Duration(i) * 2 * time.Millisecond) }
	var calls []int
	err := load.OnTime(t.Context(), 5, at, func(i int) error {
		if time.Now().Before(at(i)) {
			t.Errorf("call %d came early", i)
		}
		calls = append(calls, i)
		return nil
	})
	if err != nil || len(calls) != 5 {
		t.Errorf("calls %v, %v", calls, err)
	}
	stop := errors.New("stop")
	if err := load.OnTime(t.Context(), 5, at, func(int) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v, want that of the call", err)
	}
}
