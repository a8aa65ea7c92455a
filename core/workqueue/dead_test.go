package workqueue_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// The rules themselves are in services/queue/enginetest.
func TestASnapshotKeepsWhoHeldAKeyWithoutSettlingIt(t *testing.T) {
	t.Parallel()
	m := workqueue.New(workqueue.Config{LeaseFor: time.Second, MaxDeliveries: 2})
	now := int64(1_700_000_000_000_000)
	m.Apply(now, &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k"}}})
	inspect := []workqueue.Op{{Kind: workqueue.OpInspect, Key: "k"}}
	for i, holder := range []string{"first", "second"} {
		m.Apply(now, &workqueue.Transaction{Takes: []workqueue.Take{{Holder: holder, Max: 1}}})
		now += 1_100_000
		m.Apply(now, &workqueue.Transaction{})
		m = workqueue.Restore(m.Snapshot())
		it := m.Apply(now, &workqueue.Transaction{Ops: inspect}).Replies[0].Item
		if want := []string{"first", "second"}[:i+1]; !cmp.Equal(it.Holders, want, cmpopts.EquateEmpty()) {
			t.Errorf("after %s: holders %q, want %q", holder, it.Holders, want)
		}
	}
	if c := m.Counts(); c != (workqueue.Counts{Dead: 1}) {
		t.Errorf("counts %+v, want one dead key", c)
	}
}
