package reflector

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// TestAStandbyFindsOutWhatItCouldNotRead: a record of a later version of this program replaces one that the standby has read already. What
// it holds of the key says nothing any more, and a leader must put something readable in its place.
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
	msg.Header.Set(delta.HeaderVersion, "99")
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
