package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

var longLeases = workqueue.Config{LeaseFor: 3 * time.Second, MaxLease: time.Minute}

func takeFor(d time.Duration) workqueue.Transaction {
	return workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1, For: d.Microseconds()}}}
}

// pausedUntil moves time on and checks that a ready key is handed out after a
// time and not before.
func pausedUntil(t *testing.T, q engine.Queue, skew *atomic.Int64, after time.Duration) {
	t.Helper()
	const near = 1500 * time.Millisecond // real time goes on beside
	skew.Add(int64(after - near))
	if r := apply(t, q, take(5)); len(r.Leases) != 0 {
		t.Errorf("%v was handed out before %v were over", r.Leases[0].Key, after)
	}
	skew.Add(int64(near + 10*time.Millisecond))
	if r := apply(t, q, take(5)); len(r.Leases) == 0 {
		t.Errorf("nothing was handed out after %v", after)
	}
}

func TestAfterDataWasLostThePauseLastsAsLongAsTheLongestLeaseGranted(t *testing.T) {
	t.Parallel()
	srv := start(t)
	var skew atomic.Int64
	e := newEngine(t, redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
	q := configure(t, e, longLeases)
	apply(t, q, add("a"))
	apply(t, q, takeFor(40*time.Second))
	skew.Add(int64(10 * time.Second))
	if err := raw(t, srv).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	q = configure(t, e, longLeases)
	apply(t, q, add("a"))
	pausedUntil(t, q, &skew, 30*time.Second)
}

func TestEachPartitionPausesForItsOwnLeases(t *testing.T) {
	t.Parallel()
	cfg := longLeases
	cfg.Partitions = 3
	for name, lose := range map[string]func(*testing.T, *goredis.Client) error{
		"all was lost": func(t *testing.T, c *goredis.Client) error { return c.FlushAll(t.Context()).Err() },
		"all but the first was lost": func(t *testing.T, c *goredis.Client) error {
			for _, part := range []string{"1", "2"} {
				names, err := c.Keys(t.Context(), "*{dev/job/"+part+"}*").Result()
				if err != nil || len(names) == 0 {
					return fmt.Errorf("names %v, %w", names, err)
				}
				if err := c.Del(t.Context(), names...).Err(); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := start(t)
			e := newEngine(t, redis.Config{URL: srv.URL()})
			q := configure(t, e, cfg)
			began := time.Now()
			leases := []time.Duration{20 * time.Second, 40 * time.Second, 10 * time.Second}
			for part, d := range leases {
				apply(t, at(q, part), add("a"))
				apply(t, at(q, part), takeFor(d))
			}
			if err := lose(t, raw(t, srv)); err != nil {
				t.Fatal(err)
			}
			if again, err := e.Open(t.Context(), "dev/job"); err == nil {
				q = again // the others were made again
			} else {
				q = configure(t, e, cfg)
			}
			for part, d := range leases {
				st, err := q.Partitions()[part].Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if got := time.Duration(st.HeldUntil-st.Now) * time.Microsecond; st.HeldUntil > 0 && (got > d || got < d-time.Since(began)) {
					t.Errorf("partition %d pauses for %v, want %v less what has gone by", part, got, d)
				} else if st.HeldUntil == 0 && (part > 0 || name == "all was lost") {
					t.Errorf("partition %d does not pause", part)
				}
			}
		})
	}
}

func TestAfterDataWasLostAnotherServersLeasesAreWaitedForToo(t *testing.T) {
	t.Parallel()
	srv := start(t)
	var skew atomic.Int64
	cfg := redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }}
	granting, other := newEngine(t, cfg), newEngine(t, cfg)
	q := configure(t, granting, longLeases)
	apply(t, q, add("a"))
	apply(t, q, takeFor(40*time.Second))
	if err := raw(t, srv).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	again := configure(t, other, longLeases) // it has never used the queue: there is no pause
	apply(t, q, workqueue.Transaction{})     // the server that granted the lease begins it
	apply(t, again, add("a"))
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
			apply(t, q, add("a", "b"))
			apply(t, q, takeFor(tc.lease))
			srv.Kill()
			srv.Start()
			if tc.restarted {
				var err error
				if q, err = newEngine(t, cfg).Open(t.Context(), "dev/job"); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			apply(t, q, workqueue.Transaction{})
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
				if r := apply(t, q, take(5)); len(r.Leases) != 0 {
					t.Errorf("%v was handed out", r.Leases[0].Key)
				}
				skew.Add(int64(15 * time.Second))
				if r := apply(t, q, take(5)); len(r.Leases) == 0 {
					t.Errorf("nothing was handed out after %v", tc.pause)
				}
				return
			}
			pausedUntil(t, q, &skew, tc.pause)
		})
	}
}
