package redis

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

var answered = workqueue.Transaction{Ops: []workqueue.Op{
	{Kind: workqueue.OpAdd, Key: "k"}, {Kind: workqueue.OpInspect, Key: "k"}, {Kind: workqueue.OpObserve, Key: "k"}, {Kind: workqueue.OpReserve, Count: 1},
}}

const ready = "R\x04\x00\x01" + "\x00\x00\x00\x00\x00\x00\x02" + "\x00\x00\x00\x00\x00\x00\x03"

// answer is what the script would say to answered.
func answer() string {
	var p packer
	p.str("seq")
	for n := range int64(14) {
		p.num(n + 1)
	}
	p.str("\x84\x00\x00\x00")
	p.array(16)
	for _, n := range []int64{2, 256, 0} { // of the add
		p.num(n)
	}
	p.str("i\x00\x00\x00\x82\xa1f\x03\xa1w\xa3bad") // of the inspection
	p.num(0)
	p.str("")
	p.num(1) // of the observation
	p.str("u")
	p.id(5)
	p.num(7)
	p.str("+a\n-b\n")
	p.num(1) // of the reservation
	p.num(1)
	p.id(0x4000000000000000)
	p.num(100) // the first token
	p.array(4)
	p.num(0)
	p.num(2)
	p.num(50)
	p.str(ready)
	p.array(2)
	p.str("x")
	p.str("y")
	p.num(0) // how far the clock was corrected
	p.num(9) // its offset
	return string(p)
}

func FuzzDecodeTransactionNeverPanics(f *testing.F) {
	f.Add(answer())
	f.Add("\xa1s\x01\x02\x03\x04\x05\x06\x07\x00\x00\x00\x00\x00\x00\x00\xa0\x90\x00\x90\x90")
	f.Add("\xdd\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, blob string) {
		r, err := decodeTransaction(blob, &answered)
		if (r == nil) == (err == nil) {
			t.Fatalf("result %v with error %v", r, err)
		}
		if err != nil && !errors.Is(err, errReply) {
			t.Fatalf("error %v is not errReply", err)
		}
	})
}

func TestDecodeTransaction(t *testing.T) {
	t.Parallel()
	blob := answer()
	r, err := decodeTransaction(blob, &answered)
	if err != nil {
		t.Fatal(err)
	}
	if r.Now != 1 || r.NextDue != 2 || r.Counts != (workqueue.Counts{Ready: 3, Delayed: 4, Processing: 5, Dirty: 6, Dead: 7}) || r.Died != 12 || r.Spent != 13 || r.NextSweep != 14 {
		t.Errorf("result %+v", r)
	}
	if got := r.Replies[0]; got.Status != workqueue.Delayed || got.Requeues != 2 || got.ReadyAt != 256 {
		t.Errorf("reply %+v", got)
	}
	if got := r.Replies[1].Item; got.Requeues != 3 || got.Reason != "bad" || got.State != workqueue.Idle {
		t.Errorf("item %+v", got)
	}
	if got := r.Replies[2].Expect; got.Owner != "u" || got.Token != 5 || len(got.Creates) != 1 || len(got.Deletes) != 1 {
		t.Errorf("expectations %+v", got)
	}
	if got := r.Replies[3]; got.Count != 1 || len(got.From) != 1 || got.From[0] != 2 {
		t.Errorf("reserved %+v", got)
	}
	want := []workqueue.Lease{
		{Key: "x", Token: 100, Deadline: 51, AddedAt: 2, ReadyAt: 3, Level: 4, Attempt: 2},
		{Key: "y", Token: 101, Deadline: 51, AddedAt: 2, ReadyAt: 3, Level: 4, Attempt: 2},
	}
	if diff := cmp.Diff(r.Leases, want); diff != "" {
		t.Errorf("leases (-got +want):\n%s", diff)
	}
	for cut := range len(blob) {
		if _, err := decodeTransaction(blob[:cut], &answered); err == nil {
			t.Errorf("cut at %d was accepted", cut)
		}
	}
}

func FuzzTracesComeBackAsTheyWere(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Add("p4bf92f3577b34da6a3ce929d0")
	f.Fuzz(func(t *testing.T, s string) {
		var p packer
		p.trace(s)
		r := reader{b: string(p)}
		if s == "" {
			return // no trace
		}
		if got := r.trace(); got != s || r.err != nil || r.b != "" {
			t.Errorf("%q came back as %q, %v", s, got, r.err)
		}
	})
}
