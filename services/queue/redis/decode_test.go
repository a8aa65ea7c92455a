package redis

import (
	"errors"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func FuzzDecodeTurnNeverPanics(f *testing.F) {
	ops := []workqueue.Op{{Kind: workqueue.OpInspect, Key: "k"}, {Kind: workqueue.OpObserve, Key: "k"}}
	f.Add("\x9e\x01\x02\x03\x04\x05\x06\x07\x00\x00\x00\x00\x98\x01\x00\x00\x00\x01\x00\x00\x00\x90\x90")
	f.Add("\x9e\xcb\x40\x00\x00\x00\x00\x00\x00\x00")
	f.Add("\xdd\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, blob string) {
		r, err := decodeTurn(blob, ops)
		if (r == nil) == (err == nil) {
			t.Fatalf("result %v with error %v", r, err)
		}
		if err != nil && !errors.Is(err, errReply) {
			t.Fatalf("error %v is not errReply", err)
		}
	})
}

func TestDecodeTurn(t *testing.T) {
	t.Parallel()
	ops := []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k"}}
	blob := "\x9e\x01\x02\x03\x04\x05\x06\x07\x00\x00\x00\x00\x91\x94\x01\x02\xcd\x01\x00\x00\x90\x90"
	r, err := decodeTurn(blob, ops)
	if err != nil {
		t.Fatal(err)
	}
	if r.Now != 1 || r.NextDue != 2 || r.Counts != (workqueue.Counts{Ready: 3, Delayed: 4, Processing: 5, Dirty: 6, Dead: 7}) {
		t.Errorf("result %+v", r)
	}
	if got := r.Replies[0]; got.Status != workqueue.Queued || got.Requeues != 2 || got.ReadyAt != 256 {
		t.Errorf("reply %+v", got)
	}
	for cut := range len(blob) {
		if _, err := decodeTurn(blob[:cut], ops); err == nil {
			t.Errorf("cut at %d was accepted", cut)
		}
	}
}
