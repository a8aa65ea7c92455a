package attempt_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/internal/attempt"
)

func TestTheWaitDoublesUpToItsMost(t *testing.T) {
	t.Parallel()
	w := attempt.Wait{First: 100 * time.Millisecond, Most: 5 * time.Second}
	var got []time.Duration
	for range 8 {
		got = append(got, w.Next())
	}
	const ms = time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}; !slices.Equal(got, want) {
		t.Errorf("waits %v, want %v", got, want)
	}
	if w.Attempts() != 8 {
		t.Errorf("%d attempts, want 8", w.Attempts())
	}
	if w.Reset(); w.Next() != 100*ms || w.Attempts() != 1 {
		t.Error("Reset does not begin again")
	}
	for range 200 { // no shift runs over
		if d := w.Next(); d <= 0 || d > w.Most {
			t.Fatalf("wait %v", d)
		}
	}
}

func TestAHugeFirstWaitDoesNotOverflow(t *testing.T) {
	t.Parallel()
	w := attempt.Wait{First: 1 << 60, Most: 1 << 61}
	for range 100 {
		if d := w.Next(); d < w.First || d > w.Most {
			t.Fatalf("wait %v", d)
		}
	}
}

func TestTheWaitIsDrawnBetweenItsFractions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ low, high float64 }{{0.5, 1}, {0.5, 1.5}, {0, 1}, {1, 2}, {1, 1}} {
		w := attempt.Wait{First: time.Second, Most: time.Second, Low: c.low, High: c.high}
		least, most := time.Hour, time.Duration(0)
		for range 1000 {
			d := w.Next()
			least, most = min(least, d), max(most, d)
		}
		low, high := time.Duration(c.low*float64(time.Second)), time.Duration(c.high*float64(time.Second))
		if least < low || most > high {
			t.Errorf("%v to %v: waits from %v to %v", c.low, c.high, least, most)
		}
		if width := high - low; most-least < width*9/10 {
			t.Errorf("%v to %v: waits from %v to %v only", c.low, c.high, least, most)
		}
	}
}

func TestSleepEndsWithItsContextOrWhenWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := attempt.Wait{First: time.Second, Most: time.Minute}
		if !w.Sleep(t.Context(), 0) || time.Since(began) != time.Second {
			t.Errorf("slept for %v, want 1 s", time.Since(began))
		}
		if !w.Sleep(t.Context(), time.Hour) || time.Since(began) != time.Second+time.Hour {
			t.Errorf("slept for %v, want what was asked for at least", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if attempt.Sleep(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("the end of the context is not the end of the sleep: %v", time.Since(began))
		}
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		if began = time.Now(); !attempt.SleepUntil(t.Context(), time.Minute, wake) || time.Since(began) != 0 {
			t.Error("not woken")
		}
	})
}
