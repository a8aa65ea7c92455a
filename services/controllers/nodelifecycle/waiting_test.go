package nodelifecycle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// zoneQueue is a zone's queue as the queue service runs it, on a clock of its own:
// upstream's tests of its rate-limited timed queue, on what took its place.
type zoneQueue struct {
	*workqueue.Machine
	t    *testing.T
	now  int64
	held map[string]uint64
}

// zoned is the configuration that a rate gives a zone's queue.
func zoned(rate float64) workqueue.Config {
	return workqueue.Config{
		Limiter:  &backoff.Limiter{Kind: backoff.Exponential, Base: 50 * time.Millisecond, Max: 10 * time.Second},
		Dispatch: &workqueue.Rate{QPS: rate, Burst: 1},
	}
}

func newZoneQueue(t *testing.T, rate float64) *zoneQueue {
	t.Helper()
	return &zoneQueue{Machine: workqueue.New(zoned(rate)), t: t, now: 1_700_000_000_000_000, held: map[string]uint64{}}
}

func (q *zoneQueue) do(kind workqueue.OpKind, keys ...string) *zoneQueue {
	q.t.Helper()
	var in workqueue.Transaction
	for _, key := range keys {
		in.Ops = append(in.Ops, workqueue.Op{Kind: kind, Key: key})
	}
	for i, r := range q.Apply(q.now, &in).Replies {
		if r.Status == workqueue.Closed {
			q.t.Fatalf("%s: %+v", keys[i], r)
		}
	}
	return q
}

func (q *zoneQueue) add(nodes ...string) *zoneQueue { return q.do(workqueue.OpAdd, nodes...) }

// after lets time pass and takes what is handed out, in order.
func (q *zoneQueue) after(d time.Duration) string {
	q.t.Helper()
	q.now += d.Microseconds()
	var got []string
	for _, l := range q.Apply(q.now, &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 100}}}).Leases {
		got = append(got, l.Key)
		q.held[l.Key] = l.Token
	}
	return strings.Join(got, " ")
}

// done is after, by a worker that handles what it gets at once.
func (q *zoneQueue) done(d time.Duration) string {
	q.t.Helper()
	got := q.after(d)
	for key := range strings.FieldsSeq(got) {
		q.end(key, workqueue.Done)
	}
	return got
}

func (q *zoneQueue) end(key string, how workqueue.Outcome) {
	q.t.Helper()
	r := q.Apply(q.now, &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: key, Token: q.held[key], Outcome: how}}})
	if got := r.Replies[0].Status; got != workqueue.Settled && got != workqueue.Requeued {
		q.t.Fatalf("settling %s: %v", key, got)
	}
}

func (q *zoneQueue) want(what, got, want string) {
	q.t.Helper()
	if got != want {
		q.t.Errorf("%s: handed out %q, want %q", what, got, want)
	}
}

func TestNodesAreHandedOutOneForEachToken(t *testing.T) { // TestTry
	t.Parallel()
	for _, c := range []struct {
		name string
		rate float64
		wait time.Duration
	}{{"Normal and Full", 0.1, 10 * time.Second}, {"Partial, large zone", 0.01, 100 * time.Second}} {
		q := newZoneQueue(t, c.rate).add("first", "second", "third")
		q.do(workqueue.OpDelete, "second")
		q.want(c.name+": burst 1", q.done(0), "first")
		q.want(c.name+": before the next token", q.done(c.wait-time.Millisecond), "")
		q.want(c.name+": the one that was removed is passed over, free of charge", q.done(time.Millisecond), "third")
		q.add("fourth")
		q.want(c.name+": tokens do not pile up", q.done(10*c.wait), "fourth")
		q.add("fifth", "sixth")
		q.want(c.name+": after a long rest, one", q.done(10*c.wait), "fifth")
	}
}

func TestANodeThatFailsIsRetriedAndDelaysNoOther(t *testing.T) { // TestTryOrdering
	t.Parallel()
	q := newZoneQueue(t, 10).add("first", "second", "third")
	var calls []string
	for failed := false; len(calls) < 4; {
		got := q.after(100 * time.Millisecond)
		if got == "" {
			t.Fatalf("nothing comes after %v", calls)
		}
		calls = append(calls, got)
		if got == "second" && !failed {
			failed = true
			q.end(got, workqueue.Retry)
			q.want("it is retried after 50 ms", q.after(49*time.Millisecond), "")
			continue
		}
		q.end(got, workqueue.Done)
	}
	slices.Sort(calls)
	if want := []string{"first", "second", "second", "third"}; !slices.Equal(calls, want) {
		t.Errorf("calls %v, want %v", calls, want)
	}
}

func TestANodeRemovedWhileItIsHandledIsNotRetried(t *testing.T) { // TestTryRemovingWhileTry
	t.Parallel()
	q := newZoneQueue(t, 10).add("first", "second", "third")
	q.want("the first", q.after(0), "first")
	q.do(workqueue.OpDelete, "second") // it answers while the first is handled
	q.end("first", workqueue.Done)
	q.want("the second is gone", q.after(100*time.Millisecond), "third")
	q.do(workqueue.OpDelete, "third") // held: left to its worker, who finds it ready
	q.end("third", workqueue.Done)
	q.want("and nothing is left", q.after(time.Hour), "")
}

// Upstream's queue refuses a value it has handled until it is removed; here a node
// that is added again waits again, and the worker that takes it finds it tainted and
// leaves it alone (see TestAWaitingNodeIsTaintedByItsPresentState).
func TestANodeAddedTwiceWaitsOnceAndKeepsItsPosition(t *testing.T) { // TestAddAfterTry
	t.Parallel()
	q := newZoneQueue(t, 1).add("first", "second", "third").add("second", "first", "first")
	for _, want := range []string{"first", "second", "third", ""} {
		q.want("in the order they came", q.after(time.Second), want)
		if want != "" {
			q.end(want, workqueue.Done)
		}
	}
}

func TestAnEmptyBucketIsNotRefilledByAChangeOfTheZonesState(t *testing.T) { // TestSwapLimiter
	t.Parallel()
	for _, c := range []struct {
		name    string
		changes func(q *zoneQueue)
		// next is how long after the last token the next one is there.
		next time.Duration
	}{
		{"no change", func(*zoneQueue) {}, 10 * time.Second},
		{"stopped and on again: Full everywhere, and back", func(q *zoneQueue) {
			q.do(workqueue.OpPause, "").do(workqueue.OpResume, "")
		}, 10 * time.Second},
		{"stopped for longer than a token takes: one, not two", func(q *zoneQueue) {
			q.do(workqueue.OpPause, "")
			q.want("stopped", q.done(time.Minute), "")
			q.do(workqueue.OpResume, "")
		}, 0},
	} {
		q := newZoneQueue(t, 0.1).add("first", "second", "third")
		q.want(c.name+": the first", q.done(0), "first")
		c.changes(q)
		if c.next > 0 {
			q.want(c.name+": the bucket stays empty", q.done(c.next-time.Millisecond), "")
			q.now += time.Millisecond.Microseconds()
		}
		q.want(c.name+": the next token", q.done(0), "second")
		q.want(c.name+": and no other", q.done(0), "")
	}
	for _, rate := range []float64{0.01, 0.2} { // a large zone between Normal and Partial, and numbers of one's own
		q := newZoneQueue(t, 0.1).add("first", "second", "third")
		q.want("the first", q.done(0), "first")
		q.now += time.Second.Microseconds()
		q.Configure(q.now, zoned(rate))
		q.Configure(q.now, zoned(rate)) // by another replica
		every := time.Duration(float64(time.Second) / rate)
		q.want("another rate: the bucket stays empty", q.done(every-time.Millisecond), "")
		q.want("and then the new rate's token", q.done(time.Millisecond), "second")
		q.want("which it keeps", q.done(every-time.Millisecond), "")
		q.now += 2 * time.Minute.Microseconds()
		q.Configure(q.now, zoned(0.1))
		q.want("a bucket that has its token keeps one", q.done(0), "third")
	}
}
