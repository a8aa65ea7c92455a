package controller

import (
	"errors"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/core/delta"
)

func pod(key string, owners ...delta.Owner) delta.Record {
	return delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(key), RV: "7", Epoch: 3, Watermark: "7", Owners: owners}
}

func TestALogReadingSaysWhatOnlyAWholeStateCanTell(t *testing.T) {
	var steps []step
	var stands error
	r := logReading{take: func(s step) { steps = append(steps, s) }, stands: func(err error) { stands = err }, resumed: true, told: time.Now()}
	next := func(b delta.Batch) []step {
		t.Helper()
		steps = nil
		if err := r.batch(t.Context(), b, deltalog.Position{Position: delta.Position{Epoch: 3, Sequence: 9}}); err != nil {
			t.Fatal(err)
		}
		return steps
	}
	if got := next(delta.Batch{Records: []delta.Record{{Kind: delta.KindLiveness, Epoch: 3, Watermark: "6"}}}); len(got) != 0 {
		t.Errorf("a liveness record makes %+v, want nothing for ten seconds", got)
	}
	traced := pod("ns/a")
	traced.Trace = "00-11111111111111111111111111111111-2222222222222222-01"
	got := next(delta.Batch{Reset: true, Records: []delta.Record{traced}})
	if len(got) != 2 || got[0].gap == "" || got[1].change == nil || got[1].position != "" || got[1].trace != "" {
		t.Errorf("a reset makes %+v, want a gap and a change without a position and of no trace", got)
	}
	got = next(delta.Batch{Replayed: true})
	if len(got) != 1 || !got[0].whole || got[0].position == "" || got[0].upper.RV != "7" {
		t.Errorf("the end of a replay makes %+v, want the whole state with its position and revision", got)
	}
	full := pod("ns/b")
	full.Overflow = true
	got = next(delta.Batch{Records: []delta.Record{full}, Unreadable: []delta.Unreadable{{Key: "ns/c", Err: errors.New("no")}}})
	if len(got) != 3 || !got[0].owned.unsure || !got[1].owned.unsure || got[1].change.Object.Key != "ns/c" || got[2].position == "" {
		t.Errorf("owners that are not all known make %+v", got)
	}
	if got = next(delta.Batch{Newer: &delta.NewerError{}}); len(got) != 0 || stands == nil {
		t.Errorf("a record of a later build makes %+v, and is reported as %v", got, stands)
	}
}

func FuzzLogPosition(f *testing.F) {
	now := time.Unix(5, 6)
	f.Add(string(formatLogPosition(deltalog.Position{Position: delta.Position{Epoch: 1, Sequence: 2, Term: 3}, Created: now, Fresh: now})))
	f.Add(string(formatLogPosition(deltalog.Position{Fresh: now}))) // of a log whose age nobody knows
	f.Add("log.1.2.3.4")
	f.Add("1.2.3.4.5.6.7")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseLogPosition(position(text))
		if err != nil || text == "" {
			return
		}
		again, err := parseLogPosition(formatLogPosition(p))
		if err != nil || again.Position != p.Position || !again.Created.Equal(p.Created) || !again.Fresh.Equal(p.Fresh) {
			t.Errorf("%q is %+v, and then %+v, %v", text, p, again, err)
		}
	})
}
