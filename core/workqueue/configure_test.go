package workqueue_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// C14: what a change of the dispatch limiter does to its bucket. A second goes
// by between what was spent and the change.
func TestADispatchLimiterIsSwapped(t *testing.T) {
	t.Parallel()
	rate := func(qps float64, burst int) *workqueue.Rate { return &workqueue.Rate{QPS: qps, Burst: burst} }
	for _, c := range []struct {
		name     string
		was, now *workqueue.Rate
		spent    int
		left     int           // keys handed out at once after the change
		next     time.Duration // after the change, the next one
	}{
		{"the same rate keeps an empty bucket", rate(0.1, 1), rate(0.1, 1), 1, 0, 9 * time.Second},
		{"the same rate keeps what is left", rate(0.1, 5), rate(0.1, 5), 3, 2, 9 * time.Second},
		{"an empty bucket starts empty with a higher rate", rate(0.01, 1), rate(0.1, 1), 1, 0, 10 * time.Second},
		{"an empty bucket starts empty with a lower rate", rate(0.1, 1), rate(0.01, 1), 1, 0, 100 * time.Second},
		{"an empty bucket starts empty with another burst", rate(0.1, 1), rate(0.1, 3), 1, 0, 10 * time.Second},
		{"a bucket that filled meanwhile starts full", rate(10, 1), rate(0.1, 3), 1, 3, 10 * time.Second},
		{"a bucket with a token starts full", rate(0.1, 3), rate(0.01, 3), 2, 3, 100 * time.Second},
		{"a new limiter starts full", nil, rate(0.1, 2), 3, 2, 10 * time.Second},
		{"without a limiter all are handed out", rate(0.1, 1), nil, 1, 50, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			now := int64(1_700_000_000_000_000)
			m := workqueue.New(workqueue.Config{Dispatch: c.was, LeaseFor: time.Hour})
			add := workqueue.Transaction{}
			for i := range c.spent + 50 {
				add.Ops = append(add.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: strconv.Itoa(i), Level: workqueue.Level(0)})
			}
			m.Apply(now, &add)
			get := func(n int) *workqueue.Result {
				return m.Apply(now, &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: n}}})
			}
			if got := len(get(c.spent).Leases); got != c.spent {
				t.Fatalf("%d keys before the change, want %d", got, c.spent)
			}
			now += 1e6
			m.Configure(now, workqueue.Config{Dispatch: c.now, LeaseFor: time.Hour})
			r := get(50)
			if len(r.Leases) != c.left {
				t.Errorf("%d keys after the change, want %d", len(r.Leases), c.left)
			}
			if c.next == 0 {
				return
			}
			if got := time.Duration(r.NextDue-now) * time.Microsecond; got != c.next {
				t.Errorf("the next key %v after the change, want %v", got, c.next)
			}
			m.Configure(now, workqueue.Config{Dispatch: c.now, LeaseFor: time.Minute})
			if got := get(50); len(got.Leases) != 0 || got.NextDue != r.NextDue {
				t.Errorf("configured with the same rate again: %d keys and the next at %d, want %d", len(got.Leases), got.NextDue, r.NextDue)
			}
		})
	}
}
