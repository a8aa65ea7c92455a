package memory

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func TestKeysHeldWithoutADeadlineInALogAreFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var us atomic.Int64
	us.Store(time.Now().UnixMicro())
	advance := func(d time.Duration) { us.Add(d.Microseconds()) }
	cfg := Config{Now: func() time.Time { return time.UnixMicro(us.Load()) }}
	e, q := logged(t, dir, cfg)
	apply(t, q, adds(4))
	all := workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 9}}}
	held := apply(t, q, all).Leases
	for _, key := range []string{"k0", "k1", "k2"} {
		Orphan(t, e, name, key)
	}
	q.(*queue).rewrite()

	_, q = logged(t, dir, cfg)
	advance(graceAfterStart*time.Microsecond + 1)
	if r := apply(t, q, all); len(r.Leases) != 1 || r.Leases[0].Key != "k3" || r.Counts.Processing != 4 {
		t.Fatalf("after the restart %v are leased, counts %+v: want the key whose deadline is known", r.Leases, r.Counts)
	}
	audit := workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAudit}}}
	settle := func(l workqueue.Lease) workqueue.Status {
		return apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget}}}).Replies[0].Status
	}
	if s := settle(held[0]); s != workqueue.Settled {
		t.Errorf("the holder's settlement before the audit: status %d", s)
	}
	if r := apply(t, q, audit).Replies[0]; r.Count != 2 || r.Next != 0 {
		t.Errorf("the audit answers %+v, want 2 found and the end", r)
	}
	advance(29 * time.Second)
	if r := apply(t, q, all); len(r.Leases) != 0 {
		t.Errorf("%v are leased before the longest lease is over", r.Leases)
	}
	if s := settle(held[1]); s != workqueue.Settled {
		t.Errorf("the holder's settlement after the audit: status %d", s)
	}

	_, q = logged(t, dir, cfg) // the audit was logged
	if r := apply(t, q, audit).Replies[0]; r.Count != 0 {
		t.Errorf("an audit after another restart found %d", r.Count)
	}
	advance(2 * time.Second)
	r := apply(t, q, all)
	if len(r.Leases) == 0 || r.Leases[0].Key != "k2" || r.Leases[0].Attempt != 2 {
		t.Errorf("%+v are leased when its lease is over, want k2 in its second attempt", r.Leases)
	}
}

func TestAnAuditThatFindsNothingIsNotLogged(t *testing.T) {
	t.Parallel()
	_, q := logged(t, t.TempDir(), Config{})
	apply(t, q, adds(2))
	apply(t, q, workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
	log := q.(*queue).log
	before := log.End()
	apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAudit}}})
	if log.End() != before {
		t.Errorf("the log grew by %d bytes", log.End()-before)
	}
}
