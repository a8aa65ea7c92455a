package reflector

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// TestAStandbyFindsOutWhatItCouldNotRead: a damaged record replaces one that the standby has read
// already. What it holds of the key says nothing any more, and a leader must put something readable
// in its place.
func TestAStandbyFindsOutWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	col := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	r := &reflection{log: conn, col: col}
	s := r.follow(t.Context()) // before there is a log
	w, err := conn.Writer(t.Context(), col, stream.WriterConfig{Term: 1})
	if err != nil {
		t.Fatal(err)
	}
	seen := delta.Object{Key: "default/a", UID: "u", RV: "5", Hash: 7}
	err = w.Append(t.Context(), []delta.Record{
		{Kind: delta.KindDelta, Type: delta.Added, Key: seen.Key, UID: seen.UID, RV: seen.RV, Hash: seen.Hash, Payload: []byte("{}"), Encoding: delta.EncodingJSON},
		{Kind: delta.KindSynced, RV: "10", Watermark: "10"},
	})
	if err == nil {
		err = w.Flush(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !s.warm() || r.state.get().shadow.RV != "10"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the log was not followed in time")
		}
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	msg := nats.NewMsg(col.Subject(seen.Key))
	msg.Header.Set(delta.HeaderVersion, "none")
	if err := nc.PublishMsg(msg); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); s.warm(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the unreadable record was not noticed in time")
		}
	}
	next, err := conn.Writer(t.Context(), col, stream.WriterConfig{Term: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	l, err := s.take(t.Context(), next)
	if err != nil {
		t.Fatal(err)
	}
	if !l.unread || l.at.RV != "10" {
		t.Errorf("unread %v at %v; want a relist asked for, and W", l.unread, l.at)
	}
	l.shadow.BeginList()
	if rec, ok := l.shadow.Listed(&seen, l.at.Epoch, time.Now()); !ok {
		t.Errorf("the object as it was published before is not published again (%+v)", rec)
	}
	select {
	case <-s.done:
	default:
		t.Error("it still follows the log after it was taken")
	}
}

// What this build cannot read it must not replace: it gives up the wait for the lease, says so, and
// what a takeover would begin with is refused.
func TestAStandbyGivesUpALogOfALaterBuild(t *testing.T) {
	t.Parallel()
	col := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	for name, batch := range map[string]delta.Batch{
		"a record":        {Collection: col, Newer: &delta.NewerError{Sequence: 7, Unknown: &delta.UnknownError{Part: delta.PartVersion, Value: "2"}, Writer: "r9"}},
		"an announcement": {Collection: col, Records: []delta.Record{{Kind: delta.KindTerm, Collection: col, Epoch: 1, Term: 2, Sequence: 7, Needs: 2}}, Next: 8},
	} {
		newStandby := func() *standby {
			return &standby{r: &reflection{col: col}, moved: make(chan struct{}, 1), shadow: delta.NewShadow(time.Hour), expired: time.Now(), stop: func() {}, done: make(chan struct{})}
		}
		early, late := newStandby(), newStandby()
		waiting, end := early.contest(t.Context())
		defer end(nil)
		for _, s := range []*standby{early, late} {
			if err := s.apply(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			if err := s.apply(t.Context(), delta.Batch{Collection: col, Next: 9}); err != nil { // what comes behind changes nothing
				t.Fatal(err)
			}
		}
		begun, end := late.contest(t.Context())
		defer end(nil)
		for when, ctx := range map[string]context.Context{"while it waits": waiting, "before it waits": begun} {
			if err := context.Cause(ctx); !errors.Is(err, errNewerLog) || reasonOf(stageLead, err) != "NEWER_LOG" {
				t.Errorf("%s, %s: the wait for the lease ends by %v, want NEWER_LOG", name, when, err)
			}
		}
	}
}

// A deletion for a reason that this build does not know may be a departure from the form.
func TestADeletionForAnUnknownReasonCountsAsADeparture(t *testing.T) {
	t.Parallel()
	for reason, want := range map[delta.DeleteReason]bool{delta.Observed: false, delta.Inferred: false, delta.FilteredOut: true, "boredom": true} {
		s := &standby{r: &reflection{}, shadow: delta.NewShadow(time.Hour)}
		s.restore(&delta.Record{Kind: delta.KindDelta, Key: "a", Type: delta.Deleted, DeleteReason: reason, RV: "1"}, time.Now())
		if !s.filtered.IsZero() != want {
			t.Errorf("%s: a departure is noted: %v, want %v", reason, !want, want)
		}
	}
}

// TestDeletionsAreRememberedForLongerThanTheLogHoldsThem: a reader counts a tombstone's time from
// when it took it.
func TestDeletionsAreRememberedForLongerThanTheLogHoldsThem(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for ago, want := range map[time.Duration]bool{0: true, time.Hour: true, 90 * time.Minute: true, 2*time.Hour + 1: false} {
		if l := (handoverState{filtered: now.Add(-ago)}); l.departures(now, time.Hour) != want {
			t.Errorf("a departure seen %v ago: %v, want %v", ago, !want, want)
		}
	}
	if l := (handoverState{}); l.departures(now, time.Hour) {
		t.Error("there was none")
	}
}
