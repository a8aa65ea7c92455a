package stream_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// TestAStoppedLeaderOfARemadeLogWritesNothingIntoTheNewOne: its expectation is a sequence, which
// another log of the same name may have too, and rest there. Its old version would become the only
// record of its key.
func TestAStoppedLeaderOfARemadeLogWritesNothingIntoTheNewOne(t *testing.T) {
	t.Parallel()
	remove := func(t *testing.T, js jetstream.JetStream) jetstream.StreamConfig {
		cfg := streamOf(t, js).CachedInfo().Config
		if err := js.DeleteStream(t.Context(), cfg.Name); err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	for _, row := range []struct {
		name   string
		remake func(*testing.T, jetstream.JetStream)
		known  bool // the lease tells the next leader how far the old one was
	}{
		{"made by the next leader", func(t *testing.T, js jetstream.JetStream) { remove(t, js) }, false},
		{"made by somebody else", func(t *testing.T, js jetstream.JetStream) { recreate(t, js, remove(t, js)) }, false},
		{"made by somebody else, and the lease knows", func(t *testing.T, js jetstream.JetStream) { recreate(t, js, remove(t, js)) }, true},
		{"restored from a copy", func(t *testing.T, js jetstream.JetStream) {
			var kept []*nats.Msg
			var first uint64
			for _, subject := range []string{
				pods.ControlSubject(delta.KindFence), pods.ControlSubject(delta.KindOrigin), pods.ControlSubject(delta.KindTerm),
			} {
				m, err := streamOf(t, js).GetLastMsgForSubject(t.Context(), subject)
				if err != nil {
					t.Fatal(err)
				}
				if first == 0 {
					first = m.Sequence - stream.MaxInFlight
				}
				m.Header.Del(jetstream.ExpectedLastSeqHeader)
				kept = append(kept, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data})
			}
			cfg := remove(t, js)
			cfg.FirstSeq = first
			recreate(t, js, cfg)
			for range stream.MaxInFlight { // the rest of the fence
				kept = append([]*nats.Msg{kept[0]}, kept...)
			}
			for _, m := range kept {
				if _, err := js.PublishMsg(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
		}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			url := embeddedtest.NATS(t).URL()
			old := write(t, connect(t, url, nil), stream.WriterConfig{Term: 1})
			put(t, old, pod("a", 1))
			for i := range 2 * stream.MaxInFlight { // further than the next one's fence
				put(t, old, pod(fmt.Sprint("b", i), 2))
			}
			put(t, old, synced(2))
			row.remake(t, operator(t, url))

			cfg := stream.WriterConfig{Term: 2, Epoch: old.Epoch()}
			if row.known {
				cfg.Acked = old.Acked()
			}
			c := connect(t, url, nil)
			next := write(t, c, cfg)
			if !next.Fresh() || next.Epoch() <= old.Epoch() {
				t.Errorf("fresh %v, epoch %d after %d; want a new one", next.Fresh(), next.Epoch(), old.Epoch())
			}
			put(t, next, pod("a", 10))
			for i := 0; next.Acked() < old.Acked(); i++ { // to where the old one goes on
				put(t, next, pod(fmt.Sprint("n", i), 10))
			}
			if err := errors.Join(old.Append(t.Context(), []delta.Record{pod("a", 5)}), old.Flush(t.Context())); err == nil {
				t.Error("the old leader's append was accepted")
			}
			put(t, next, synced(11))
			m := follow(t, c, stream.ReadConfig{})
			m.until(t, "the new state", func() bool { return m.revision() == delta.Revision{Epoch: next.Epoch(), RV: "11"} })
			if got := m.live()["default/a"]; got != "10" {
				t.Errorf("a reader was given version %q of the key, want 10", got)
			}
			if err := next.Check(t.Context(), 1); err != nil {
				t.Errorf("Check() by the next leader = %v", err)
			}
			if lead := next.Acked() - old.Acked(); next.Acked() < old.Acked() || lead <= stream.MaxInFlight {
				t.Errorf("the new log ends at %d, within reach of the old leader, which was at %d", next.Acked(), old.Acked())
			}
		})
	}
}
