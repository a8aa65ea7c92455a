package workqueue

import (
	"strconv"
	"testing"
)

// The engines' suite has the rest.
func TestAnAuditMovesABoundedNumberOfKeys(t *testing.T) {
	t.Parallel()
	s := &Snapshot{}
	for i := range SweepMax + 10 {
		s.Items = append(s.Items, SavedItem{Key: strconv.Itoa(i), State: Processing, Token: uint64(i + 1), Holder: "w"})
	}
	m, at := Restore(s), 0
	for step, want := range []Reply{{Count: SweepMax, Next: 1}, {Count: 10}, {}} {
		r := m.Apply(1000, &Transaction{Ops: []Op{{Kind: OpAudit, Count: at}}}).Replies[0]
		if r.Count != want.Count || r.Next != want.Next {
			t.Errorf("step %d = %+v, want %+v", step, r, want)
		}
		at = int(r.Next)
	}
	if !m.Quiet(1000, &Transaction{Ops: []Op{{Kind: OpAudit}}}) {
		t.Error("an audit that has nothing to find would be remembered")
	}
}

func TestALeaseWithoutAHeldKeyIsLeftOutOfAQueueThatIsRestored(t *testing.T) {
	t.Parallel()
	m := Restore(&Snapshot{Items: []SavedItem{{Key: "a", State: Ready, Token: 7, Holder: "w", Deadline: 5000}}})
	if it := m.Apply(1000, &Transaction{Ops: []Op{{Kind: OpInspect, Key: "a"}}}).Replies[0].Item; it.Token != 0 || it.Holder != "" || it.Deadline != 0 {
		t.Errorf("a key that waits is shown as %+v", it)
	}
	r := m.Apply(6000, &Transaction{Takes: []Take{{Holder: "x", Max: 2}}})
	if len(r.Leases) != 1 || r.Expired != 0 || r.Counts != (Counts{Processing: 1}) {
		t.Errorf("leased %v, %d expired, counts %+v", r.Leases, r.Expired, r.Counts)
	}
}
