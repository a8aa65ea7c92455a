package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// audit walks over all keys once and returns how many got a deadline.
func audit(t *testing.T, q engine.Queue) (found int) {
	t.Helper()
	for at := 0; ; {
		r := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAudit, Count: at}}}).Replies[0]
		found += r.Count
		if at = int(r.Next); at == 0 {
			return found
		}
	}
}

// damaged is a queue with keys that are held, whose data is changed by hand.
func damaged(t *testing.T, held int) (q engine.Queue, leases []workqueue.Lease, by *goredis.Client, advance func(time.Duration)) {
	t.Helper()
	srv := start(t)
	var skew atomic.Int64
	e := newEngine(t, redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
	q = configure(t, e, workqueue.Config{LeaseFor: 5 * time.Second, MaxLease: 20 * time.Second})
	var keys []string
	for i := range held {
		keys = append(keys, fmt.Sprintf("k%03d", i))
	}
	apply(t, q, add(keys...))
	leases = apply(t, q, take(held)).Leases
	if len(leases) != held {
		t.Fatalf("%d leases, want %d", len(leases), held)
	}
	return q, leases, raw(t, srv), func(d time.Duration) { skew.Add(int64(d)) }
}

const (
	stateKey = "dp:{dev/job/0}:st"
	leaseKey = "dp:{dev/job/0}:lease"
)

func settled(t *testing.T, q engine.Queue, l workqueue.Lease) workqueue.Status {
	t.Helper()
	return apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done}}}).Replies[0].Status
}

func TestAllDeadlinesLostAtOnce(t *testing.T) {
	t.Parallel()
	for _, held := range []int{1, 5, 200} { // 200: with the member that keeps the sorted set wide
		t.Run(fmt.Sprint(held), func(t *testing.T) {
			t.Parallel()
			q, leases, by, advance := damaged(t, held)
			if err := by.Del(t.Context(), leaseKey).Err(); err != nil {
				t.Fatal(err)
			}
			if n := audit(t, q); n != held {
				t.Errorf("%d got a deadline, want %d", n, held)
			}
			if s := settled(t, q, leases[0]); s != workqueue.Settled {
				t.Errorf("the first holder's settlement: status %d", s)
			}
			advance(19 * time.Second)
			if r := apply(t, q, take(held)); len(r.Leases) != 0 || r.Counts.Processing != held-1 {
				t.Errorf("before their time: %d leases, counts %+v", len(r.Leases), r.Counts)
			}
			advance(1100 * time.Millisecond)
			r := apply(t, q, take(held))
			if len(r.Leases) != held-1 || r.Counts.Processing != held-1 || r.Expired != held-1 {
				t.Errorf("after it: %d leases, %d expired, counts %+v: want %d", len(r.Leases), r.Expired, r.Counts, held-1)
			}
			if n := audit(t, q); n != 0 {
				t.Errorf("a second audit found %d", n)
			}
		})
	}
}

func TestDeadlinesLostAllButTheMemberThatKeepsTheSetWide(t *testing.T) {
	t.Parallel()
	q, leases, by, advance := damaged(t, 50)
	for _, l := range leases {
		if err := by.ZRem(t.Context(), leaseKey, l.Key).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if r := apply(t, q, workqueue.Transaction{}); r.Counts.Processing != 50 { // or a settlement would make it −1, and the next lease 0
		t.Errorf("counts %+v before the audit, want 50 held", r.Counts)
	}
	if s := settled(t, q, leases[49]); s != workqueue.Settled {
		t.Errorf("a settlement before the audit: status %d", s)
	}
	if n := audit(t, q); n != 49 {
		t.Errorf("%d got a deadline, want 49", n)
	}
	advance(20100 * time.Millisecond)
	if r := apply(t, q, take(100)); len(r.Leases) != 49 || r.Counts.Processing != 49 {
		t.Errorf("after their time: %d leases, counts %+v", len(r.Leases), r.Counts)
	}
}

func TestHeldKeysThatAreCountedTooFewKeepTheirDeadlines(t *testing.T) {
	t.Parallel()
	q, leases, by, advance := damaged(t, 5)
	control, err := by.HGet(t.Context(), stateKey, "").Bytes()
	if err != nil {
		t.Fatal(err)
	}
	clear(control[5*8 : 6*8]) // none
	if err := by.HSet(t.Context(), stateKey, "", control).Err(); err != nil {
		t.Fatal(err)
	}
	if n := audit(t, q); n != 0 {
		t.Errorf("%d got a deadline, want none", n)
	}
	if s := settled(t, q, leases[0]); s != workqueue.Settled {
		t.Errorf("status %d", s)
	}
	advance(5100 * time.Millisecond)
	if r := apply(t, q, take(5)); len(r.Leases) != 4 || r.Counts.Processing != 4 {
		t.Errorf("after the leases' time: %d leases, counts %+v", len(r.Leases), r.Counts)
	}
}

func TestADeadlineOfNothingIsDroppedAndTheCountPutRight(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(context.Context, *goredis.Client, []workqueue.Lease) error{
		"of a key whose record is gone": func(ctx context.Context, by *goredis.Client, ls []workqueue.Lease) error {
			return by.HDel(ctx, stateKey, ls[0].Key).Err()
		},
		"of a key whose record is gone, as its deadline": func(ctx context.Context, by *goredis.Client, ls []workqueue.Lease) error {
			return errors.Join(by.HDel(ctx, stateKey, ls[0].Key).Err(), by.ZRem(ctx, leaseKey, ls[0].Key).Err())
		},
		"of a key that waits, made by hand": func(ctx context.Context, by *goredis.Client, ls []workqueue.Lease) error {
			at, err := by.ZScore(ctx, leaseKey, ls[1].Key).Result()
			return errors.Join(err, by.HDel(ctx, stateKey, ls[0].Key).Err(), by.ZAdd(ctx, leaseKey, goredis.Z{Score: at, Member: "waits"}).Err())
		},
	} {
		for _, held := range []int{2, 30} {
			t.Run(fmt.Sprint(name, " ", held), func(t *testing.T) {
				t.Parallel()
				q, leases, by, advance := damaged(t, held)
				apply(t, q, add("waits", leases[0].Key)) // which is dirty then
				if err := damage(t.Context(), by, leases); err != nil {
					t.Fatal(err)
				}
				if n := audit(t, q); n != 0 {
					t.Errorf("%d got a deadline, want none", n)
				}
				for _, l := range leases[2:] {
					if s := settled(t, q, l); s != workqueue.Settled {
						t.Fatalf("status %d", s)
					}
				}
				advance(5100 * time.Millisecond)
				r := apply(t, q, take(held))
				if len(r.Leases) != 2 || r.Leases[0].Key != "waits" || r.Leases[1].Key != leases[1].Key {
					t.Errorf("leased %v, want what waited and what was held", r.Leases)
				}
				audit(t, q)
				for _, l := range r.Leases {
					if s := settled(t, q, l); s != workqueue.Settled {
						t.Errorf("settle %q: status %d", l.Key, s)
					}
				}
				if c := apply(t, q, workqueue.Transaction{}).Counts; c != (workqueue.Counts{}) {
					t.Errorf("counts %+v, want nothing left", c)
				}
			})
		}
	}
}

func TestAnAuditLooksAtABoundedPartOfTheKeys(t *testing.T) {
	t.Parallel()
	q, leases, by, _ := damaged(t, 1)
	var keys []string
	for i := range 20_000 {
		keys = append(keys, fmt.Sprint("more", i))
	}
	apply(t, q, add(keys...))
	steps := func() (n int) {
		for at := 0; n == 0 || at != 0; n++ {
			at = int(apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAudit, Count: at}}}).Replies[0].Next)
		}
		return n
	}
	if n := steps(); n < 20_000/256/2 {
		t.Errorf("where nothing is wrong %d steps, want about 256 keys a step", n)
	}
	key := leases[0].Key // counted as held until a whole walk has not met it
	if err := errors.Join(by.ZRem(t.Context(), leaseKey, key).Err(), by.HDel(t.Context(), stateKey, key).Err()); err != nil {
		t.Fatal(err)
	}
	if n := steps(); n < 20_000/2048/2 || n > 2*20_000/2048 {
		t.Errorf("where the numbers differ %d steps, want about 2048 keys a step", n)
	}
	if c := apply(t, q, workqueue.Transaction{}).Counts; c.Processing != 0 {
		t.Errorf("counts %+v after a whole walk, want none held", c)
	}
}
