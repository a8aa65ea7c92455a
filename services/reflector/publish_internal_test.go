package reflector

import (
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// A log that stands still again while it is given the list that was asked for: what finds no room
// then needs another one.
func TestChangesThatOverflowBehindAListGetAListOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := &reflection{relist: make(chan struct{}, 1)}
	p := &publisher{r: r, wake: make(chan struct{}, 1), stage: delta.NewStage(1<<10, "")}
	r.cfg.StageBytes = 1 << 10
	s := newSource(r, p, delta.NewShadow(0), 1, "", "")
	payload := []byte(strings.Repeat("x", 1<<10))
	overflow := func() {
		for i := range 100 {
			p.add(func(st *delta.Stage) {
				st.Offer(delta.Record{Kind: delta.KindDelta, Key: delta.Key(rune('a' + i)), Payload: payload})
			})
		}
	}
	drained := func() bool {
		for len(p.stage.Pop(popRecords, popBytes)) > 0 {
		}
		p.repair()
		select {
		case <-r.relist:
			return true
		default:
			return false
		}
	}
	s.asks = newDeletionResolver(t.Context(), r, p, "")
	defer s.asks.close()
	overflow()
	if !drained() {
		t.Fatal("no list is asked for")
	}
	s.finish(t.Context(), "10")
	overflow()
	if !drained() {
		t.Error("no list is asked for, of what was lost behind the first")
	}
	if s.finish(t.Context(), "20"); drained() || p.stage.Watermark() != "20" {
		t.Errorf("another list, or the watermark %s, after the loss was made up for", p.stage.Watermark())
	}
}

// Several lists may wait for a slow log. What the first left open is not settled by the second
// before the log has that one.
func TestAListIsDueUntilACompleteOneIsInTheLog(t *testing.T) {
	t.Parallel()
	p := &publisher{lists: []bool{true, false, true, false}}
	for i, want := range []struct {
		synced        int
		complete, due bool
	}{{1, false, true}, {1, true, true}, {2, true, false}} {
		if complete, due := p.told(want.synced); complete != want.complete || due != want.due {
			t.Errorf("%d: told(%d) = %v, %v, want %v, %v", i, want.synced, complete, due, want.complete, want.due)
		}
	}
}

// A record that is in no hurry may be on its way while changes wait behind it.
func TestTheLagIsThatOfTheOldestChangeThatWaits(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := &publisher{r: &reflection{}, wake: make(chan struct{}, 1), stage: delta.NewStage(1<<10, "")}
	since := func() time.Duration { v := p.r.state.get(); return v.behind(began) }
	p.sending = 1
	for i, age := range []time.Duration{time.Minute, time.Second} {
		p.add(func(st *delta.Stage) {
			st.Push(delta.Record{Kind: delta.KindDelta, Key: delta.Key(rune('a' + i)), ObservedAt: began.Add(-age)})
		})
	}
	if got := since(); got != time.Minute {
		t.Errorf("behind a liveness record: %v, want 1m0s", got)
	}
	p.stage.Pop(1, popBytes)
	p.sent = began.Add(-time.Minute)
	p.count()
	if got := since(); got != time.Minute {
		t.Errorf("on its way: %v, want 1m0s", got)
	}
	p.sending, p.sent = 0, time.Time{}
	p.count()
	if got := since(); got != time.Second {
		t.Errorf("after the first: %v, want 1s", got)
	}
	p.stage.Pop(1, popBytes)
	p.count()
	if got := since(); got != 0 {
		t.Errorf("with nothing waiting: %v, want 0", got)
	}
}
