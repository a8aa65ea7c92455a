package stream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// operator is somebody else with access to the server.
func operator(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func streamOf(t testing.TB, js jetstream.JetStream) jetstream.Stream {
	t.Helper()
	s, err := js.Stream(t.Context(), pods.StreamName())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatSomebodyElseTakesFromALogBeginsANewEpoch(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		harm func(*testing.T, jetstream.JetStream) error
		want error
	}{
		{"purged", func(t *testing.T, js jetstream.JetStream) error { return streamOf(t, js).Purge(t.Context()) }, stream.ErrLogLost},
		{"trimmed", func(t *testing.T, js jetstream.JetStream) error {
			return streamOf(t, js).Purge(t.Context(), jetstream.WithPurgeKeep(3))
		}, stream.ErrLogLost},
		{"one key purged", func(t *testing.T, js jetstream.JetStream) error {
			return streamOf(t, js).Purge(t.Context(), jetstream.WithPurgeSubject(pods.Subjects()[0]))
		}, stream.ErrLogLost},
		{"limited for a moment", func(t *testing.T, js jetstream.JetStream) error {
			cfg := streamOf(t, js).CachedInfo().Config
			cfg.MaxMsgs = 4
			_, err := js.UpdateStream(t.Context(), cfg)
			cfg.MaxMsgs = -1
			_, err2 := js.UpdateStream(t.Context(), cfg)
			return errors.Join(err, err2)
		}, stream.ErrLogLost},
		{"deleted", func(t *testing.T, js jetstream.JetStream) error {
			return js.DeleteStream(t.Context(), pods.StreamName())
		}, stream.ErrLogLost},
		{"made again", func(t *testing.T, js jetstream.JetStream) error {
			cfg := streamOf(t, js).CachedInfo().Config
			if err := js.DeleteStream(t.Context(), cfg.Name); err != nil {
				return err
			}
			recreate(t, js, cfg)
			return nil
		}, stream.ErrLogLost},
		{"limited", func(t *testing.T, js jetstream.JetStream) error {
			cfg := streamOf(t, js).CachedInfo().Config
			cfg.MaxAge = time.Hour
			_, err := js.UpdateStream(t.Context(), cfg)
			return err
		}, stream.ErrForeign},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			url := embeddedtest.NATS(t).URL()
			c := connect(t, url, func(cfg *stream.Config) { cfg.TombstoneTTL = 8 * time.Second })
			w := write(t, c, stream.WriterConfig{Term: 1})
			put(t, w, pod("a", 1), pod("b", 2), pod("c", 3), pod("d", 4), pod("ghost", 5), synced(5))
			m := follow(t, c, stream.ReadConfig{})
			m.until(t, "sync", func() bool { return m.revision().RV == "5" })
			if err := w.Check(t.Context(), 5); err != nil {
				t.Fatalf("Check() of a whole log = %v", err)
			}
			if err := row.harm(t, operator(t, url)); err != nil {
				t.Fatal(err)
			}
			if err := w.Check(t.Context(), 5); !errors.Is(err, row.want) {
				t.Fatalf("Check() = %v, want %v", err, row.want)
			}
			if err := w.Append(t.Context(), []delta.Record{pod("a", 6)}); !errors.Is(err, row.want) {
				t.Errorf("Append() after it = %v, want %v for good", err, row.want)
			}
			if !errors.Is(row.want, stream.ErrLogLost) {
				if _, err := c.Writer(t.Context(), pods, stream.WriterConfig{Term: 2}); !errors.Is(err, row.want) {
					t.Errorf("the next writer: %v, want %v", err, row.want)
				}
				return
			}
			next := write(t, c, stream.WriterConfig{Term: 2, Acked: w.Acked(), Epoch: w.Epoch(), NewEpoch: true})
			if !next.Fresh() || next.Epoch() <= w.Epoch() {
				t.Errorf("fresh %v, epoch %d after %d; want a new one", next.Fresh(), next.Epoch(), w.Epoch())
			}
			put(t, next, pod("a", 6), pod("b", 2), pod("c", 3), pod("d", 4), synced(6))
			if err := next.Check(t.Context(), 4); err != nil {
				t.Errorf("Check() by the next writer = %v", err)
			}
			late := follow(t, c, stream.ReadConfig{})
			for _, m := range []*mirror{m, late} {
				m.until(t, "the new epoch, without the ghost", func() bool {
					live := m.live()
					return m.revision() == (delta.Revision{Epoch: next.Epoch(), RV: "6"}) && len(live) == 4 && live["default/a"] == "6"
				})
			}
			if m.resets < 2 {
				t.Errorf("%d resets, want an explicit gap", m.resets)
			}
		})
	}
}

func TestALogWithoutItsBeginningIsNotTakenForAllThereIs(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), pod("b", 2), synced(2))
	if err := streamOf(t, operator(t, url)).Purge(t.Context(), jetstream.WithPurgeKeep(2)); err != nil { // b and synced are left
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := c.Read(ctx, pods, stream.ReadConfig{}, func(_ context.Context, b delta.Batch) error {
		t.Errorf("was told %+v of a log that has lost a", b)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	next := write(t, c, stream.WriterConfig{Term: 2})
	if !next.Fresh() {
		t.Error("the next writer began no new epoch")
	}
	put(t, next, pod("a", 1), pod("b", 2), synced(3))
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "both", func() bool { return len(m.live()) == 2 && m.revision().RV == "3" })
}

func TestAQuietReaderNoticesByItselfThatTheLogIsGone(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, func(cfg *stream.Config) { cfg.TombstoneTTL = 2 * time.Second }) // looks every 0.5 s
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "sync", func() bool { return m.revision().RV == "1" })
	js := operator(t, url)
	if err := js.DeleteStream(t.Context(), pods.StreamName()); err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: pods.StreamName(), Subjects: pods.Subjects(), MaxMsgsPerSubject: 1, AllowMsgTTL: true}
	recreate(t, js, cfg) // empty, and nobody leads
	m.until(t, "an explicit gap", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.resets == 2 && !m.follower.Readable()
	})
}

func TestWhoResumesFromBeforeAnExpiredTombstoneSweeps(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), func(cfg *stream.Config) { cfg.TombstoneTTL = time.Second })
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), pod("b", 2), synced(2))
	m := newMirror()
	stop := m.read(t, c, stream.ReadConfig{})
	m.until(t, "sync", func() bool { return m.revision().RV == "2" })
	left := time.Now()
	stop()
	put(t, w, gone("a", 3))
	eventually(t, "the tombstone's end", func() bool {
		tail, err := c.Tail(t.Context(), pods)
		return err == nil && tail.Messages == 5 // fence, origin, term, b, synced
	})
	put(t, w, pod("c", 4))
	m.read(t, c, stream.ReadConfig{From: m.follower.Position(), FromTime: left})
	m.until(t, "the ghost swept", func() bool {
		live := m.live()
		return m.revision().RV == "4" && len(live) == 2 && live["default/a"] == ""
	})
}

func TestARecordThatOutgrowsAPullIsReadAllTheSame(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	w := write(t, connect(t, url, nil), stream.WriterConfig{Term: 1})
	small := connect(t, url, func(cfg *stream.Config) { cfg.MaxPayload = 1 << 20 }) // pulls 2 MB at a time
	var records []delta.Record
	for i, size := range []int{100, 1500 << 10, 3 << 20, 7 << 20, 10} {
		r := pod("p"+string(rune('a'+i)), i+1)
		r.Payload = make([]byte, size)
		records = append(records, r)
	}
	put(t, w, append(records, synced(5))...)
	m := follow(t, small, stream.ReadConfig{PullBytes: 1})
	m.until(t, "all sizes", func() bool { return m.revision().RV == "5" && len(m.live()) == 5 })
	for _, r := range records {
		if got := m.objects[r.Key].Payload; len(got) != len(r.Payload) {
			t.Errorf("%s has %d bytes, want %d", r.Key, len(got), len(r.Payload))
		}
	}
}

func TestAFullServerIsNamed(t *testing.T) {
	t.Parallel()
	n := fullNATS(t)
	c := connect(t, n.URL(), nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	var err error
	for i := 0; err == nil && i < 100; i++ {
		r := pod("p"+string(rune('a'+i%26))+string(rune('a'+i/26)), i+1)
		r.Payload = make([]byte, 512<<10)
		err = errors.Join(w.Append(t.Context(), []delta.Record{r}), w.Flush(t.Context()))
	}
	if !errors.Is(err, stream.ErrLogFull) {
		t.Errorf("append to a full server = %v, want ErrLogFull", err)
	}
	if _, err := c.Writer(t.Context(), pods, stream.WriterConfig{Term: 2}); err != nil && !errors.Is(err, stream.ErrLogFull) {
		t.Errorf("Writer() on a full server = %v, want ErrLogFull or room enough", err)
	}
}

func TestAServerWithoutJetStreamIsNamed(t *testing.T) {
	t.Parallel()
	url, _ := embeddedtest.PlainNATS(t, "")
	c := connect(t, url, nil)
	for what, err := range map[string]error{
		"Tail": func() error { _, err := c.Tail(t.Context(), pods); return err }(),
		"Writer": func() error {
			_, err := c.Writer(t.Context(), pods, stream.WriterConfig{Term: 1})
			return err
		}(),
		"Bucket":      func() error { _, err := c.Bucket(t.Context(), "b", 0); return err }(),
		"Collections": func() error { _, err := c.Collections(t.Context()); return err }(),
	} {
		if !errors.Is(err, stream.ErrNoJetStream) {
			t.Errorf("%s = %v, want ErrNoJetStream", what, err)
		}
	}
}

// The log is counted, and a tombstone counts like a key: as many keys as there are tombstones may
// be taken unseen, until those have expired. What is taken from the log's start is seen at once, as
// its origin is gone.
func TestATrimThatTombstonesHideIsSeenOnceTheyAreGone(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, func(cfg *stream.Config) { cfg.TombstoneTTL = 2 * time.Second })
	w := write(t, c, stream.WriterConfig{Term: 1})
	tombstone := func(name string, rv int) delta.Record {
		r := pod(name, rv)
		r.Type, r.DeleteReason, r.Payload = delta.Deleted, delta.Observed, nil
		return r
	}
	put(t, w, pod("a", 1), pod("b", 2), tombstone("c", 3), tombstone("d", 4), synced(4))
	js := operator(t, url)
	if err := streamOf(t, js).Purge(t.Context(), jetstream.WithPurgeSubject(pods.Subject(delta.NewKey("default", "a")))); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		err := w.Check(t.Context(), 2)
		if errors.Is(err, stream.ErrLogLost) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("Check() = %v, want the loss noticed once the tombstones are gone", err)
		}
	}
	next := write(t, c, stream.WriterConfig{Term: 2, Acked: w.Acked(), Epoch: w.Epoch(), NewEpoch: true})
	put(t, next, pod("a", 1), pod("b", 2), tombstone("c", 3), tombstone("d", 4), synced(4))
	info, err := streamOf(t, js).Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := streamOf(t, js).Purge(t.Context(), jetstream.WithPurgeSequence(info.State.LastSeq-3)); err != nil {
		t.Fatal(err)
	}
	if err := next.Check(t.Context(), 2); !errors.Is(err, stream.ErrLogLost) {
		t.Errorf("Check() of a log cut at its start = %v, want %v however many tombstones it holds", err, stream.ErrLogLost)
	}
}
