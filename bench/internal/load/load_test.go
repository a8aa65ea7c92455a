package load

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestAnOpenLoopWaitsForNoAnswerAndForgivesNoDelay(t *testing.T) {
	t.Parallel()
	const calls, d = 50, 50 * time.Millisecond
	last := make(chan struct{})
	got, err := OpenLoop(t.Context(), d, 1000, func(_ context.Context, n int) error {
		if n == calls-1 {
			close(last)
			return nil
		}
		<-last // a closed loop would wait here for ever
		return nil
	})
	if err != nil || got.sent != calls || got.Latency.Count() != calls || got.Began.Count() != calls {
		t.Fatalf("%d sent, %d answered, %v, want %d", got.sent, got.Latency.Count(), err, calls)
	}
	// The first was due 49 ms before the last. Buckets are less than 1 % wide.
	if most := got.Latency.Quantile(1); most < 48*time.Millisecond {
		t.Errorf("the first answer took %v, want the 49 ms that it waited", most)
	}
}

func TestAnOpenLoopHoldsBackWhatItsLimitLeavesOutAndCountsItAsLate(t *testing.T) {
	t.Parallel()
	const calls, rate = underWayLimit + 10, 100_000 // due within 21 ms
	first := make(chan struct{})
	var underWay, most atomic.Int64
	got, err := OpenLoop(t.Context(), calls*time.Second/rate, rate, func(_ context.Context, i int) error {
		if i == 0 {
			time.AfterFunc(100*time.Millisecond, func() { close(first) })
		}
		n := underWay.Add(1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		<-first
		underWay.Add(-1)
		return nil
	})
	if err != nil || got.sent != calls || got.Latency.Count() != calls {
		t.Fatalf("%d sent, %d answered, %v, want %d", got.sent, got.Latency.Count(), err, calls)
	}
	if most.Load() > underWayLimit {
		t.Errorf("%d calls under way at once, want at most %d", most.Load(), underWayLimit)
	}
	// The last was due 21 ms after the start and had to wait until the first were answered.
	if late := got.Began.Quantile(1); late < 70*time.Millisecond {
		t.Errorf("the last call began %v after it was due, want what held it back", late)
	}
}

func TestAnOpenLoopEndsWithTheFirstError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	got, err := OpenLoop(t.Context(), time.Minute, 1000, func(_ context.Context, n int) error {
		if n == 3 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) || got.sent >= 60_000 {
		t.Errorf("%d sent, %v, want %v before all are", got.sent, err, broken)
	}
}

func TestBacklogIsTheTimeTheLoadNeedsForIt(t *testing.T) {
	t.Parallel()
	p := paced{sent: 5000, Meanwhile: 4900, offered: 5000}
	if got := p.Backlog(); got != 20*time.Millisecond {
		t.Errorf("backlog %v, want 20ms for 100 of 5000/s", got)
	}
}
