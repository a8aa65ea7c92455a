package redis_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

var longLeases = workqueue.Config{LeaseFor: 3 * time.Second, MaxLease: time.Minute}

func takeFor(d time.Duration) workqueue.Turn {
	return workqueue.Turn{Takes: []workqueue.Take{{Holder: "w", Max: 1, For: d.Microseconds()}}}
}

// pausedUntil moves time on and checks that a ready key is handed out after a
// time and not before.
func pausedUntil(t *testing.T, q engine.Queue, skew *atomic.Int64, after time.Duration) {
	t.Helper()
	const near = 1500 * time.Millisecond // real time goes on beside
	skew.Add(int64(after - near))
	if r := turn(t, q, take(5)); len(r.Leases) != 0 {
		t.Errorf("%v was handed out before %v were over", r.Leases[0].Key, after)
	}
	skew.Add(int64(near + 10*time.Millisecond))
	if r := turn(t, q, take(5)); len(r.Leases) == 0 {
		t.Errorf("nothing was handed out after %v", after)
	}
}

func TestAfterDataWasLostThePauseLastsAsLongAsTheLongestLeaseGranted(t *testing.T) {
	t.Parallel()
	srv := start(t)
	var skew atomic.Int64
	e := newEngine(t, redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
	q := configure(t, e, longLeases)
	turn(t, q, add("a"))
	turn(t, q, takeFor(40*time.Second))
	skew.Add(int64(10 * time.Second))
	if err := raw(t, srv).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	q = configure(t, e, longLeases)
	turn(t, q, add("a"))
	pausedUntil(t, q, &skew, 30*time.Second)
}

func TestAfterDataWasLostAnotherServersLeasesAreWaitedForToo(t *testing.T) {
	t.Parallel()
	srv := start(t)
	var skew atomic.Int64
	cfg := redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }}
	granting, other := newEngine(t, cfg), newEngine(t, cfg)
	q := configure(t, granting, longLeases)
	turn(t, q, add("a"))
	turn(t, q, takeFor(40*time.Second))
	if err := raw(t, srv).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	again := configure(t, other, longLeases) // it has never used the queue: there is no pause
	turn(t, q, workqueue.Turn{})             // which whoever granted begins
	turn(t, again, add("a"))
	pausedUntil(t, again, &skew, 40*time.Second)
}

func TestARestartPausesForTheLongestLeaseWhereNoServerRemembers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		restarted bool // the server too
		lease     time.Duration
		pause     time.Duration
	}{
		"remembered":     {false, 40 * time.Second, 40 * time.Second},
		"short":          {false, time.Second, 3 * time.Second},
		"not remembered": {true, time.Second, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := embeddedtest.DurableRedis(t)
			var skew atomic.Int64
			cfg := redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }, GiveUp: 20 * time.Second}
			e := newEngine(t, cfg)
			q := configure(t, e, longLeases)
			turn(t, q, add("a", "b"))
			turn(t, q, takeFor(tc.lease))
			srv.Kill()
			srv.Start()
			if tc.restarted {
				var err error
				if q, err = newEngine(t, cfg).Open(t.Context(), "dev/job"); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			turn(t, q, workqueue.Turn{})
			st, err := q.Partitions()[0].Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := time.Duration(st.HeldUntil-st.Now) * time.Microsecond; got > tc.pause {
				t.Errorf("paused for %v, want at most %v", got, tc.pause)
			}
			if tc.lease > 3*time.Second { // the time of the restart is over already
				tc.pause -= time.Since(began)
				skew.Add(int64(tc.pause - 15*time.Second))
				if r := turn(t, q, take(5)); len(r.Leases) != 0 {
					t.Errorf("%v was handed out", r.Leases[0].Key)
				}
				skew.Add(int64(15 * time.Second))
				if r := turn(t, q, take(5)); len(r.Leases) == 0 {
					t.Errorf("nothing was handed out after %v", tc.pause)
				}
				return
			}
			pausedUntil(t, q, &skew, tc.pause)
		})
	}
}
