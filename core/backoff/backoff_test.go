package backoff_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/backoff"
)

const sec = time.Second

func TestB01SlowBackoff(t *testing.T) {
	t.Parallel()
	b := backoff.NewBackoff(sec, 50*sec)
	now := time.Unix(1000, 0)
	var got []int
	for range 10 {
		got = append(got, int(b.Get("a")/sec))
		b.Next("a", now, now)
	}
	if diff := cmp.Diff(got, []int{0, 1, 2, 4, 8, 16, 32, 50, 50, 50}); diff != "" {
		t.Errorf("delays (-got +want):\n%s", diff)
	}
	b.Reset("a")
	if b.Get("a") != 0 {
		t.Errorf("after Reset = %v, want 0 (B-05)", b.Get("a"))
	}
}

func TestB02TheFirstDelayIsNotCapped(t *testing.T) {
	t.Parallel()
	b := backoff.NewBackoff(10*sec, 5*sec)
	now := time.Unix(1000, 0)
	b.Next("a", now, now)
	if b.Get("a") != 10*sec {
		t.Errorf("first = %v, want 10s", b.Get("a"))
	}
	b.Next("a", now, now)
	if b.Get("a") != 5*sec {
		t.Errorf("second = %v, want 5s", b.Get("a"))
	}
}

func TestB03ExpiryIsStrictlyMoreThanTwiceTheMaximum(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		quiet, want time.Duration
	}{{10 * sec, 4 * sec}, {10*sec + 1, sec}} {
		b := backoff.NewBackoff(sec, 5*sec)
		now := time.Unix(1000, 0)
		b.Next("a", now, now)
		b.Next("a", now, now)
		later := now.Add(tc.quiet)
		b.Next("a", later, later)
		if got := b.Get("a"); got != tc.want {
			t.Errorf("after %v quiet = %v, want %v", tc.quiet, got, tc.want)
		}
	}
	b := backoff.NewBackoff(sec, 5*sec, backoff.WithExpiry(func(event, update time.Time, _ time.Duration) bool {
		return event.Sub(update) >= 8*sec
	}))
	now := time.Unix(1000, 0)
	b.Next("a", now, now)
	b.Next("a", now.Add(8*sec), now.Add(8*sec))
	if got := b.Get("a"); got != sec {
		t.Errorf("custom expiry = %v, want 1s", got)
	}
}

func TestB04InBackOffSinceUpdate(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	b := backoff.NewBackoff(sec, 10*sec)
	// Upstream's TestIsInBackOffSinceUpdate: tick, delay there, in back-off; next at each false tick.
	var gotFalse []int
	for tick := range 58 {
		at := start.Add(time.Duration(tick) * sec)
		if !b.IsInBackOffSinceUpdate("a", at) {
			gotFalse = append(gotFalse, tick)
			switch tick {
			case 0, 1, 3, 7, 15, 25, 56:
				b.Next("a", at, at)
			}
		}
	}
	want := []int{0, 1, 3, 7, 15}
	for tick := 25; tick <= 25; tick++ {
		want = append(want, tick)
	}
	for tick := 35; tick <= 57; tick++ {
		want = append(want, tick)
	}
	if diff := cmp.Diff(gotFalse, want); diff != "" {
		t.Errorf("ticks out of back-off (-got +want):\n%s", diff)
	}
	if b.Get("a") != sec {
		t.Errorf("after more than 20 s quiet = %v, want 1s", b.Get("a"))
	}
	if b.IsInBackOffSince("b", start, start) {
		t.Error("an unknown id is in back-off")
	}
}

func TestB04InBackOffSince(t *testing.T) {
	t.Parallel()
	b := backoff.NewBackoff(sec, 5*sec)
	now := time.Unix(1000, 0)
	for range 4 {
		b.Next("a", now, now)
	}
	for _, tc := range []struct {
		event, at time.Duration
		want      bool
	}{{0, 4 * sec, true}, {0, 5 * sec, false}, {11 * sec, 11 * sec, false}} {
		if got := b.IsInBackOffSince("a", now.Add(tc.event), now.Add(tc.at)); got != tc.want {
			t.Errorf("event +%v at +%v = %v, want %v", tc.event, tc.at, got, tc.want)
		}
	}
}

func TestB05GCDropsOnlyWhatExpired(t *testing.T) {
	t.Parallel()
	b := backoff.NewBackoff(sec, 5*sec)
	now := time.Unix(1000, 0)
	b.Next("a", now, now)
	if b.GC(now.Add(6 * sec)); b.Len() != 1 {
		t.Error("dropped after 6 s")
	}
	if b.GC(now.Add(12 * sec)); b.Len() != 0 {
		t.Error("kept after 12 s")
	}
	b.Next("a", now, now)
	if b.DeleteEntry("a"); b.Len() != 0 {
		t.Error("DeleteEntry kept it")
	}
}

func TestB01JitterStaysInItsBand(t *testing.T) {
	t.Parallel()
	const factor = 0.1
	i := 0.0
	b := backoff.NewBackoff(100*time.Millisecond, time.Minute, backoff.WithJitter(factor, func() float64 { i += 0.09; return i - float64(int(i)) }))
	now := time.Unix(1000, 0)
	b.Next("a", now, now)
	for range 12 {
		prev := b.Get("a")
		b.Next("a", now, now)
		got := b.Get("a")
		if got != time.Minute && (got < 2*prev || got > 2*prev+time.Duration(factor*float64(prev))) {
			t.Errorf("after %v: %v is outside the band", prev, got)
		}
	}
}
