package pleg_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/pleg"
)

func TestHealthFollowsTheAgeOfTheLastList(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := start.Add
	for _, c := range []struct {
		name     string
		now      time.Time
		listed   time.Time
		streamed bool
		since    time.Time
		healthy  bool
	}{
		{"never listed", start, time.Time{}, false, time.Time{}, false},
		{"never listed, 10 min later", at(10 * time.Minute), time.Time{}, false, time.Time{}, false},
		{"listed a minute ago", at(time.Minute), start, false, time.Time{}, true},
		{"listed just as long ago as it may be", at(3 * time.Minute), start, false, time.Time{}, true},
		{"listed longer ago", at(3*time.Minute + 1), start, false, time.Time{}, false},
		{"longer ago with a stream", at(9 * time.Minute), start, true, time.Time{}, true},
		{"too long ago with a stream", at(10*time.Minute + 1), start, true, time.Time{}, false},
		{"the stream broke a minute ago", at(5 * time.Minute), start, false, at(4 * time.Minute), true},
		{"the stream broke longer ago", at(7*time.Minute + 1), start, false, at(4 * time.Minute), false},
		{"the stream broke at the very end", at(10*time.Minute + 1), start, false, at(10 * time.Minute), false},
		{"a list since the stream broke is too old", at(10 * time.Minute), at(6 * time.Minute), false, at(5 * time.Minute), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := pleg.Standard().Healthy(c.now, c.listed, c.streamed, c.since)
			if (err == nil) != c.healthy {
				t.Fatalf("Healthy() = %v, want healthy %t", err, c.healthy)
			}
			if stale, ok := errors.AsType[*pleg.StaleError](err); ok && stale.Since <= stale.Limit {
				t.Errorf("%v is no fault", err)
			} else if !ok && err != nil && !errors.Is(err, pleg.ErrNeverListed) {
				t.Errorf("Healthy() = %v, of no known kind", err)
			}
		})
	}
}

func TestPaceReportsEveryFaultTogether(t *testing.T) {
	t.Parallel()
	if err := pleg.Standard().Validate(); err != nil {
		t.Errorf("the standard pace: %v", err)
	}
	err := pleg.Pace{Period: -1, Threshold: -1, SlowPeriod: time.Minute, SlowThreshold: time.Second}.Validate()
	if err == nil {
		t.Fatal("Validate() = nil")
	}
	for _, want := range []string{"the period is not positive", "the threshold -1ns is not longer", "the slow threshold 1s is not longer"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want it to say %q", err, want)
		}
	}
}

func TestAStreamIsTriedFiveTimesAndThenEveryFiveMinutes(t *testing.T) {
	t.Parallel()
	rules := pleg.StandardStream()
	var s pleg.Stream
	waits := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Minute, 5 * time.Minute, 5 * time.Minute}
	for i, want := range waits {
		wait, gaveUp := s.Failed(rules)
		if wait != want || gaveUp != (i >= 4) {
			t.Errorf("failure %d: wait %v, gave up %t, want %v, %t", i+1, wait, gaveUp, want, i >= 4)
		}
	}
	s.Proved()
	if wait, gaveUp := s.Failed(rules); wait != rules.Pause || gaveUp {
		t.Errorf("the first failure of a stream that delivered: wait %v, gave up %t", wait, gaveUp)
	}
}

func TestManyTriesDoNotOverflowThePause(t *testing.T) {
	t.Parallel()
	rules := pleg.StreamRules{Tries: 1000, Pause: time.Second, Retry: time.Hour}
	var s pleg.Stream
	for range 999 {
		if wait, _ := s.Failed(rules); wait <= 0 || wait > time.Hour {
			t.Fatalf("Failed() = %v", wait)
		}
	}
}
