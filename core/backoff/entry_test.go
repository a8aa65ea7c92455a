package backoff_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/backoff"
)

const us = int64(1_000_000)

func growth(initial, limit int64) backoff.Growth {
	return backoff.Growth{Initial: initial * us, Max: limit * us, ExpireAfter: 2 * limit * us}
}

func TestEntriesDoubleUpToTheMaximum(t *testing.T) {
	t.Parallel()
	g, now := growth(1, 50), 1000*us
	var e backoff.Entry
	var got []int64
	for range 10 {
		got = append(got, e.Delay/us)
		e = g.Next(e, now, now, 0)
	}
	if diff := cmp.Diff(got, []int64{0, 1, 2, 4, 8, 16, 32, 50, 50, 50}); diff != "" {
		t.Errorf("TestSlowBackoff (-got +want):\n%s", diff)
	}
	if later := g.Next(e, now-10*us, now+us, 0); later.Updated != now+us {
		t.Errorf("stamped %d, want now and not the event", later.Updated)
	}
}

func TestAResetEntryStartsOver(t *testing.T) {
	t.Parallel()
	g, now := growth(1, 5), 1000*us
	var e backoff.Entry
	for range 4 {
		e = g.Next(e, now, now, 0)
	}
	if g.Since(e, now, now+4*us) <= 0 {
		t.Error("TestBackoffReset: not in back-off after 4 s of 5")
	}
	if left := g.Since(e, now+11*us, now+11*us); left > 0 {
		t.Errorf("TestBackoffReset: still in back-off for %d us after 11 s", left)
	}
	if left := g.Since(backoff.Entry{}, now, now); left > 0 {
		t.Errorf("a reset id is in back-off for %d us", left)
	}
}

func TestTheDelayStaysAtItsMaximum(t *testing.T) {
	t.Parallel()
	g, now := growth(1, 5), 1000*us
	var e backoff.Entry
	for range 5 {
		e = g.Next(e, now, now, 0)
	}
	if e.Delay != 5*us {
		t.Fatalf("delay %d, want the maximum", e.Delay)
	}
	if e = g.Next(e, now+6*us, now+6*us, 0); e.Delay != 5*us {
		t.Errorf("TestBackoffHighWaterMark: %d after 6 s, want it to stay", e.Delay)
	}
}

func TestTheJitterStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	g := backoff.Growth{Initial: us / 10, Max: 60 * us, ExpireAfter: 120 * us, Jitter: 0.1}
	rng, now := rand.New(rand.NewPCG(1, 2)), 1000*us
	for range 200 {
		e := g.Next(backoff.Entry{}, now, now, rng.Float64())
		if e.Delay < g.Initial || e.Delay > g.Initial+g.Initial/10 {
			t.Fatalf("first delay %d is outside its band", e.Delay)
		}
		for range 12 {
			prev := e.Delay
			e = g.Next(e, now, now, rng.Float64())
			if e.Delay != g.Max && (e.Delay < 2*prev || e.Delay > 2*prev+prev/10+1) {
				t.Fatalf("TestBackoffWithJitter: after %d: %d is outside the band", prev, e.Delay)
			}
		}
	}
}

func TestTheFirstEntryIsNotCapped(t *testing.T) {
	t.Parallel()
	g := growth(10, 5)
	e := g.Next(backoff.Entry{}, us, us, 0)
	if next := g.Next(e, us, us, 0); e.Delay != 10*us || next.Delay != 5*us {
		t.Errorf("delays %d and %d, want 10 s and 5 s", e.Delay, next.Delay)
	}
}

func TestEntriesExpireStrictlyAfter(t *testing.T) {
	t.Parallel()
	g := growth(1, 5)
	e := backoff.Entry{Delay: 2 * us, Updated: 1000 * us}
	for _, tc := range []struct {
		event, want int64
	}{{e.Updated + 10*us, 4 * us}, {e.Updated + 10*us + 1, us}, {e.Updated - 100*us, 4 * us}} {
		if got := g.Next(e, tc.event, e.Updated+20*us, 0).Delay; got != tc.want {
			t.Errorf("event %d us after the update: %d, want %d", tc.event-e.Updated, got, tc.want)
		}
	}
	g.ExpireAfter = 200 * us // TestAlternateHasExpiredFunc
	if g.Expired(e, e.Updated+200*us) || !g.Expired(e, e.Updated+200*us+1) {
		t.Error("an expiry of 200 s is not kept")
	}
}

func TestInBackOffSinceUpdateTickByTick(t *testing.T) {
	t.Parallel()
	g := growth(1, 10)
	var e backoff.Entry
	var out, delays []int64
	next := map[int64]bool{0: true, 1: true, 3: true, 7: true, 15: true, 56: true}
	for tick := range int64(58) {
		now := 1000*us + tick*us
		if g.SinceUpdate(e, now) > 0 {
			continue
		}
		out = append(out, tick)
		if next[tick] {
			e = g.Next(e, now, now, 0)
			delays = append(delays, e.Delay/us)
		}
	}
	want := []int64{0, 1, 3, 7, 15}
	for tick := int64(25); tick <= 57; tick++ {
		want = append(want, tick)
	}
	if diff := cmp.Diff(out, want); diff != "" {
		t.Errorf("TestIsInBackOffSinceUpdate: ticks out of back-off (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(delays, []int64{1, 2, 4, 8, 10, 1}); diff != "" {
		t.Errorf("delays (-got +want):\n%s", diff)
	}
}

func TestTheRemainingDelayCountsFromTheEvent(t *testing.T) {
	t.Parallel()
	g := growth(1, 50)
	e := backoff.Entry{Delay: 8 * us, Updated: 1000 * us}
	if left := g.Since(e, 1001*us, 1004*us); left != 5*us {
		t.Errorf("since the event: %d left, want 5 s", left)
	}
	if left := g.SinceUpdate(e, 1001*us); left != 7*us {
		t.Errorf("since the update: %d left, want 7 s", left)
	}
	if left := g.SinceUpdate(e, 1101*us); left > 0 {
		t.Errorf("expired: %d left", left)
	}
}

// TestThrottlesFollowUpstreamsTable is throttle_test.go: what is taken, and when.
func TestThrottlesFollowUpstreamsTable(t *testing.T) {
	t.Parallel()
	at := func(s float64) int64 { return 1000*us + int64(math.Ceil(s*1e6)) }
	take := func(tb *backoff.Throttle, now int64, qps float64, burst, n int) (got int) {
		for range n {
			if tb.Take(now, qps, burst) {
				got++
			}
		}
		return got
	}
	t.Run("(1,3): three, then none", func(t *testing.T) {
		t.Parallel()
		var tb backoff.Throttle
		if got := take(&tb, at(0), 1, 3, 4); got != 3 {
			t.Errorf("%d of 4 taken, want 3", got)
		}
		if tb.Return(2, 1); take(&tb, at(0), 1, 3, 4) != 2 {
			t.Error("what was given back cannot be taken again")
		}
	})
	t.Run("(1,1): there again after 2 s", func(t *testing.T) {
		t.Parallel()
		var tb backoff.Throttle
		if !tb.Take(at(0), 1, 1) || tb.Take(at(0.9), 1, 1) || !tb.Take(at(2), 1, 1) || tb.Take(at(2), 1, 1) {
			t.Error("one a second is not kept")
		}
	})
	for _, tc := range []struct {
		qps   float64
		burst int
		n     int
		least float64 // seconds
	}{{10, 5, 16, 1}, {100, 1, 100, 0.99}} {
		var tb backoff.Throttle
		now := at(0)
		for range tc.n { // as Accept and Wait do: until the next one is there
			now = max(now, int64(math.Ceil(tb.At(now, tc.qps, tc.burst))))
			if !tb.Take(now, tc.qps, tc.burst) {
				t.Fatalf("%+v: no token when it said", tc)
			}
		}
		if got := float64(now-at(0)) / 1e6; got < tc.least || got > tc.least+0.2 {
			t.Errorf("%+v: took %v s", tc, got)
		}
	}
	t.Run("(0.0001,1): the second is far away", func(t *testing.T) {
		t.Parallel()
		var tb backoff.Throttle
		if !tb.Take(at(0), 0.0001, 1) || tb.At(at(1), 0.0001, 1) < float64(at(9999)) {
			t.Error("the second token comes within the deadline of a second")
		}
	})
	t.Run("one in 1.031425 s: 60 takes 2 s apart succeed", func(t *testing.T) {
		t.Parallel()
		var tb backoff.Throttle
		for i := range 60 {
			if !tb.Take(at(2*float64(i)), 1/1.031425, 1) {
				t.Fatalf("take %d was refused", i)
			}
		}
	})
}

func TestTokensReservedTogetherGiveTheSameDelays(t *testing.T) {
	t.Parallel()
	l := backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{
		{Kind: backoff.Bucket, Rate: 3, Burst: 4},
		{Kind: backoff.MaxWait, Max: time.Minute, Of: []backoff.Limiter{{Kind: backoff.Bucket, Rate: 0.5, Burst: 2}}},
		{Kind: backoff.Exponential, Base: time.Millisecond, Max: time.Second},
	}}
	rng := rand.New(rand.NewPCG(3, 3))
	one, many := make([]float64, l.Buckets()), make([]float64, l.Buckets())
	now := int64(1e15)
	for range 200 {
		n := 1 + rng.IntN(6)
		froms := l.Reserve(n, now, many)
		for i := range n {
			a, b := l.Micros(i, now, one), l.Spend(i, now, froms)
			if math.Abs(a-b) > 1 { // adding an interval at a time rounds a little differently
				t.Fatalf("token %d of %d: %v one by one, %v in one go", i, n, a, b)
			}
		}
		now += rng.Int64N(4e6)
	}
}
