package podsync_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/podsync"
)

func at(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

// Upstream's TestGetWork.
func TestGetWork(t *testing.T) {
	t.Parallel()
	var q podsync.Due[string]
	for key, due := range map[string]int{"a": -60, "b": -61, "c": 60, "d": 61} {
		q.Set(key, at(due))
	}
	for i, want := range []struct {
		now  int
		keys []string
	}{{0, []string{"b", "a"}}, {0, nil}, {3600, []string{"c", "d"}}, {3600, nil}} {
		if got := q.Take(at(want.now)); !slices.Equal(got, want.keys) {
			t.Errorf("Take() %d = %v, want %v", i, got, want.keys)
		}
	}
}

func TestTheLastWriteOfADueTimeWins(t *testing.T) {
	t.Parallel()
	var q podsync.Due[string]
	q.Set("a", at(10))
	q.Set("a", at(20))
	if got := q.Take(at(11)); got != nil {
		t.Errorf("Take() = %v, want nothing: the later time was written last", got)
	}
	q.Set("a", at(5))
	if next, ok := q.Next(); !ok || !next.Equal(at(5)) {
		t.Errorf("Next() = %v, %t, want the earlier time: it was written last", next, ok)
	}
	if got := q.Take(at(5)); got != nil {
		t.Errorf("Take() = %v, want nothing: a key is due strictly after its time", got)
	}
	q.Drop("a")
	q.Drop("a")
	if got := q.Take(at(100)); got != nil || q.Len() != 0 {
		t.Errorf("Take() = %v of %d, want nothing after Drop", got, q.Len())
	}
}

func TestARandomHistoryOfDueTimesAgreesWithAMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var q podsync.Due[int]
		model := map[int]time.Time{}
		for range 500 {
			key, when := rnd.IntN(20), at(rnd.IntN(100))
			switch rnd.IntN(4) {
			case 0:
				q.Drop(key)
				delete(model, key)
			case 1:
				got := q.Take(when)
				for i, k := range got {
					if i > 0 && model[k].Before(model[got[i-1]]) {
						t.Fatalf("seed %d: Take() = %v is not in the order of their times", seed, got)
					}
				}
				for k, due := range model {
					if due.Before(when) != slices.Contains(got, k) {
						t.Fatalf("seed %d: key %d due %v: Take(%v) = %v", seed, k, due, when, got)
					}
				}
				for _, k := range got {
					delete(model, k)
				}
			default:
				q.Set(key, when)
				model[key] = when
			}
			if q.Len() != len(model) {
				t.Fatalf("seed %d: Len() = %d, want %d", seed, q.Len(), len(model))
			}
		}
	}
}

type backoff struct{ until time.Time }

func (b backoff) Error() string           { return "back-off" }
func (b backoff) BackoffUntil() time.Time { return b.until }

// The rows of upstream's TestCompleteWork_Enqueue; a back-off's expiry has no jitter here.
func TestCompleteWorkEnqueue(t *testing.T) {
	t.Parallel()
	waits := podsync.Waits{Resync: 20 * time.Second, Error: 10 * time.Second, Transient: time.Second}
	now := at(0)
	expiry := func(seconds int) error { return backoff{at(seconds)} }
	generic := errors.New("generic")
	for _, tc := range []struct {
		name     string
		moved    bool
		err      error
		min, max time.Duration
	}{
		{name: "a change of state is due at once", moved: true},
		{name: "success", min: 20 * time.Second, max: 30 * time.Second},
		{name: "an error", err: generic, min: 10 * time.Second, max: 15 * time.Second},
		{name: "an expiry ahead", err: expiry(5), min: 5 * time.Second, max: 5 * time.Second},
		{name: "an expiry among others", err: errors.Join(generic, fmt.Errorf("deep: %w", errors.Join(generic, expiry(7)))), min: 7 * time.Second, max: 7 * time.Second},
		{name: "the earliest of two expiries", err: errors.Join(expiry(10), expiry(3)), min: 3 * time.Second, max: 3 * time.Second},
		{name: "an expiry that is over", err: expiry(-5)},
		{name: "an expiry beyond the resync", err: expiry(40), min: 20 * time.Second, max: 20 * time.Second},
		{name: "no network", err: fmt.Errorf("pod: %w", podsync.ErrNetworkNotReady), min: time.Second, max: 1500 * time.Millisecond},
		{name: "no network wins over an expiry", err: errors.Join(expiry(5), podsync.ErrNetworkNotReady), min: time.Second, max: 1500 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := waits.After(tc.err, tc.moved, now, 0); got != tc.min {
				t.Errorf("After(random 0) = %v, want %v", got, tc.min)
			}
			if got := waits.After(tc.err, tc.moved, now, 1); got != tc.max {
				t.Errorf("After(random 1) = %v, want %v", got, tc.max)
			}
		})
	}
}
