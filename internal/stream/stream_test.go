package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The server in the test's process leaves these behind when a stream is removed, and one clock
		// for good.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	)
}

var pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}

func connect(t testing.TB, url string, change func(*stream.Config)) *stream.Conn {
	t.Helper()
	cfg := stream.Config{URL: url}
	if change != nil {
		change(&cfg)
	}
	c, err := stream.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func write(t testing.TB, c *stream.Conn, cfg stream.WriterConfig) *stream.Writer {
	t.Helper()
	w, err := c.Writer(t.Context(), pods, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func pod(name string, rv int) delta.Record {
	payload := fmt.Appendf(nil, `{"kind":"Pod","metadata":{"name":%q,"resourceVersion":"%d"}}`, name, rv)
	return delta.Record{
		Kind: delta.KindDelta, Key: delta.NewKey("default", name), UID: "uid-" + name, Type: delta.Updated,
		RV: strconv.Itoa(rv), Watermark: strconv.Itoa(rv), Payload: payload, Encoding: delta.EncodingJSON, Hash: delta.Hash(payload),
	}
}

func gone(name string, rv int) delta.Record {
	return delta.Record{
		Kind: delta.KindDelta, Key: delta.NewKey("default", name), Type: delta.Deleted, DeleteReason: delta.Observed,
		RV: strconv.Itoa(rv), Watermark: strconv.Itoa(rv),
	}
}

func synced(rv int) delta.Record {
	return delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(rv), Watermark: strconv.Itoa(rv)}
}

func put(t testing.TB, w *stream.Writer, records ...delta.Record) {
	t.Helper()
	if err := errors.Join(w.Append(t.Context(), records), w.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// mirror is a reader that keeps what a well-behaved consumer would: a map of keys, swept after a
// replay.
type mirror struct {
	mu       sync.Mutex
	follower delta.Follower
	objects  map[delta.Key]delta.Record
	seen     map[delta.Key]bool
	resets   int
	replayed int
	changed  chan struct{}
	claim    func(delta.Revision) // called with the lock held after each batch
}

func newMirror() *mirror {
	return &mirror{objects: map[delta.Key]delta.Record{}, seen: map[delta.Key]bool{}, changed: make(chan struct{}, 1)}
}

// read follows the log until the test ends or stop is called.
func (m *mirror) read(t testing.TB, c *stream.Conn, cfg stream.ReadConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Read(ctx, pods, cfg, m.handle) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Read() = %v, want nil on a clean stop", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func follow(t testing.TB, c *stream.Conn, cfg stream.ReadConfig) *mirror {
	t.Helper()
	m := newMirror()
	m.read(t, c, cfg)
	return m
}

func (m *mirror) handle(_ context.Context, b delta.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.Reset {
		m.resets++
		clear(m.seen)
	}
	for _, r := range b.Records {
		if r.Kind != delta.KindDelta {
			continue
		}
		m.seen[r.Key] = true
		if held, ok := m.objects[r.Key]; !ok || delta.Apply(held.Stamp(), r.Stamp()) {
			m.objects[r.Key] = r
		}
	}
	if b.Replayed {
		m.replayed++
		for k := range m.objects {
			if !m.seen[k] {
				delete(m.objects, k)
			}
		}
	}
	if rev := m.follower.Apply(b); m.claim != nil {
		m.claim(rev)
	}
	select {
	case m.changed <- struct{}{}:
	default:
	}
	return nil
}

func (m *mirror) live() map[delta.Key]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[delta.Key]string{}
	for k, r := range m.objects {
		if !r.Tombstone() {
			out[k] = r.RV
		}
	}
	return out
}

func (m *mirror) revision() delta.Revision {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.follower.Revision()
}

// until waits for a condition, looking again after each batch.
func (m *mirror) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-m.changed:
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			m.mu.Lock()
			defer m.mu.Unlock()
			t.Fatalf("%s: not seen in time; follower %+v, %d objects, %d resets", what, m.follower, len(m.objects), m.resets)
		}
	}
}

func TestALogReplaysItsStateAndThenItsTail(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	early := follow(t, c, stream.ReadConfig{}) // waits for a log that does not exist yet
	w := write(t, c, stream.WriterConfig{Term: 7, Holder: "a"})
	if !w.Fresh() || w.Term() != 7 || w.Epoch() == 0 {
		t.Fatalf("writer: fresh %v, term %d, epoch %d; want a new epoch of term 7", w.Fresh(), w.Term(), w.Epoch())
	}
	put(t, w, pod("a", 1), pod("b", 2), pod("a", 3), gone("b", 4))
	early.until(t, "the tombstone", func() bool { return len(early.live()) == 1 })
	if early.follower.Readable() {
		t.Error("readable before the synced record")
	}
	put(t, w, synced(4))
	want := delta.Revision{Epoch: w.Epoch(), RV: "4"}
	early.until(t, "the synced revision", func() bool { return early.revision() == want })
	late := follow(t, c, stream.ReadConfig{})
	late.until(t, "the synced revision", func() bool { return late.revision() == want })
	if got := late.live(); len(got) != 1 || got["default/a"] != "3" {
		t.Errorf("replay gives %v, want only a at 3", got)
	}
	put(t, w, pod("c", 9))
	late.until(t, "the tail", func() bool { return late.revision().RV == "9" })
	cols, err := c.Collections(t.Context())
	if err != nil || len(cols) != 1 || cols[0] != pods {
		t.Errorf("Collections() = %v, %v", cols, err)
	}
}

func TestPayloadsUpToTheLimitPassAndLargerOnesAreRefusedByKey(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	big := pod("big", 1)
	big.Payload = make([]byte, c.MaxPayload())
	put(t, w, big, synced(1))
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "the large record", func() bool { return m.revision().RV == "1" })
	if got := len(m.objects["default/big"].Payload); got != c.MaxPayload() {
		t.Errorf("payload has %d bytes, want %d", got, c.MaxPayload())
	}
	big.Payload = make([]byte, c.MaxPayload()+1)
	if err := w.Append(t.Context(), []delta.Record{big}); !errors.Is(err, stream.ErrTooLarge) {
		t.Errorf("Append() = %v, want ErrTooLarge", err)
	}
	put(t, w, pod("after", 2))
}

func TestADeposedWriterAppendsNothingAfterTheNextTermRecord(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	old := write(t, c, stream.WriterConfig{Term: 1, Holder: "old"})
	put(t, old, pod("a", 1), synced(1))
	next := write(t, c, stream.WriterConfig{Term: 2, Holder: "next"})
	if next.Fresh() || next.Epoch() != old.Epoch() {
		t.Errorf("failover with the log intact began epoch %d, want %d kept", next.Epoch(), old.Epoch())
	}
	err := errors.Join(old.Append(t.Context(), []delta.Record{pod("a", 2)}), old.Flush(t.Context()))
	if !errors.Is(err, stream.ErrDeposed) {
		t.Fatalf("old leader's append = %v, want ErrDeposed", err)
	}
	if err := old.Append(t.Context(), []delta.Record{pod("a", 3)}); !errors.Is(err, stream.ErrDeposed) {
		t.Errorf("second append = %v, want ErrDeposed for good", err)
	}
	put(t, next, pod("a", 4))
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "the new leader's record", func() bool { return m.live()["default/a"] == "4" })
	if _, err := c.Writer(t.Context(), pods, stream.WriterConfig{Term: 1}); !errors.Is(err, stream.ErrDeposed) {
		t.Errorf("taking over with an old term = %v, want ErrDeposed", err)
	}
}

func TestAppendsPipelinedBeforeATakeoverCannotMeetTheirExpectationAgain(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	old := write(t, c, stream.WriterConfig{Term: 1, Holder: "old"})
	put(t, old, pod("a", 1), synced(1))
	tail, err := c.Tail(t.Context(), pods)
	if err != nil {
		t.Fatal(err)
	}
	// A paused leader's whole pipeline, as it would leave its socket after the takeover: each expects
	// the one before it.
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	next := write(t, c, stream.WriterConfig{Term: 2, Holder: "next"})
	for i := range stream.MaxInFlight {
		r := pod("a", 100+i)
		r.Collection, r.Epoch, r.Term = pods, old.Epoch(), 1
		msg := &nats.Msg{Subject: r.Subject(), Header: r.Header(), Data: r.Payload}
		msg.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(tail.Last+uint64(i), 10))
		ack, err := nc.RequestMsg(msg, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(ack.Data, []byte(`"error"`)) {
			t.Fatalf("append %d of the old pipeline was accepted after the term record: %s", i, ack.Data)
		}
	}
	put(t, next, pod("a", 2))
}

func TestATailBelowWhatWasAcknowledgedBeginsANewEpochAndReadersSweep(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("ghost", 1), pod("kept", 2), synced(2))
	first := w.Epoch()
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "both pods", func() bool { return len(m.live()) == 2 })
	if err := c.Remove(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Append(t.Context(), []delta.Record{pod("kept", 3)}), w.Flush(t.Context())); !errors.Is(err, stream.ErrLogLost) {
		t.Fatalf("append to a log that is gone = %v, want ErrLogLost", err)
	}
	ahead := first + 1_000_000_000_000 // as if this clock had been set back since
	next := write(t, c, stream.WriterConfig{Term: 2, Acked: w.Acked(), Epoch: ahead})
	if !next.Fresh() || next.Epoch() <= ahead {
		t.Fatalf("epoch %d after %d, want a new one", next.Epoch(), ahead)
	}
	put(t, next, pod("kept", 4), synced(4))
	m.until(t, "the ghost swept", func() bool {
		live := m.live()
		return len(live) == 1 && live["default/kept"] == "4" && m.revision() == (delta.Revision{Epoch: next.Epoch(), RV: "4"})
	})
	if m.resets < 2 {
		t.Errorf("%d resets, want an explicit gap", m.resets)
	}
}

func TestResumingComparesIdentity(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "sync", func() bool { return m.revision().RV == "1" })
	at := m.follower.Position()
	for _, row := range []struct {
		name string
		pos  delta.Position
		want error
	}{
		{"the position of a reader that is current", at, nil},
		{"beyond the end", delta.Position{Epoch: at.Epoch, Sequence: at.Sequence + 5, Term: 1}, stream.ErrBootstrap},
		{"another epoch", delta.Position{Epoch: at.Epoch - 1, Sequence: at.Sequence, Term: 1}, stream.ErrBootstrap},
		{"a term that the log does not know", delta.Position{Epoch: at.Epoch, Sequence: at.Sequence, Term: 9}, stream.ErrBootstrap},
	} {
		if err := c.Check(t.Context(), pods, row.pos); !errors.Is(err, row.want) {
			t.Errorf("%s: Check() = %v, want %v", row.name, err, row.want)
		}
	}
	next := write(t, c, stream.WriterConfig{Term: 2})
	put(t, next, pod("a", 2))
	if err := c.Check(t.Context(), pods, at); err != nil {
		t.Errorf("a term that began after the position: %v, want it resumed", err)
	}
	stale := delta.Position{Epoch: at.Epoch, Sequence: next.Acked(), Term: 1}
	if err := c.Check(t.Context(), pods, stale); !errors.Is(err, stream.ErrBootstrap) {
		t.Errorf("a newer term that began below the position: %v, want ErrBootstrap", err)
	}
	resumed := follow(t, c, stream.ReadConfig{From: at})
	resumed.until(t, "the record after the position", func() bool { return resumed.live()["default/a"] == "2" })
	if resumed.resets != 0 {
		t.Errorf("%d resets, want the read to resume", resumed.resets)
	}
	old := follow(t, c, stream.ReadConfig{From: at, FromTime: time.Now().Add(-2 * time.Hour)})
	old.until(t, "a replay", func() bool { return old.revision().RV != "" })
	if old.resets != 1 {
		t.Errorf("a reader away for more than half the tombstone ttl: %d resets, want 1", old.resets)
	}
}

func TestALaggingReaderClaimsNoRevisionAcrossAHole(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	m := newMirror()
	stop := m.read(t, c, stream.ReadConfig{})
	m.until(t, "sync", func() bool { return m.revision().RV == "1" })
	stop()
	// While nobody reads, b@10 is replaced by b@3000 far behind the c's, whose watermarks would vouch
	// for it.
	put(t, w, pod("b", 10))
	var filler []delta.Record
	for i := range 100 {
		filler = append(filler, pod("c"+strconv.Itoa(i), 11+i))
	}
	put(t, w, filler...)
	put(t, w, pod("b", 3000))
	m.claim = func(rev delta.Revision) {
		if _, ok := m.objects["default/b"]; !ok && delta.Compare(rev.RV, "10") >= 0 {
			t.Errorf("claimed revision %s without the object of revision 10", rev.RV)
		}
	}
	m.read(t, c, stream.ReadConfig{From: m.follower.Position(), MaxBatch: 1})
	m.until(t, "the end", func() bool { return m.revision().RV == "3000" })
	if m.resets != 1 {
		t.Errorf("%d resets, want the second read to resume", m.resets)
	}
}

func TestReadersSurviveAServerRestartWithoutLeavingConsumersBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNATS(t, dir, "127.0.0.1:0")
	url := n.URL()
	c := connect(t, url, nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	m := follow(t, c, stream.ReadConfig{})
	m.until(t, "sync", func() bool { return m.revision().RV == "1" })
	n.Stop()
	startNATS(t, dir, url[len("nats://"):])
	put(t, w, pod("a", 2))
	m.until(t, "the record after the restart", func() bool { return m.revision().RV == "2" })
	if m.resets != 1 {
		t.Errorf("%d resets, want the read to resume after the restart", m.resets)
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), pods.StreamName())
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CachedInfo().State.Consumers; got != 1 {
		t.Errorf("%d consumers for one reader", got)
	}
}

func TestAReaderHeldUpInAReplayForLongerThanATombstoneLivesBeginsAgain(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), func(cfg *stream.Config) { cfg.TombstoneTTL, cfg.MaxPayload = 2*time.Second, 1<<20 })
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1))
	for i := range 8 { // more than the server sends ahead
		r := pod("big"+strconv.Itoa(i), 2+i)
		r.Payload = bytes.Repeat([]byte("x"), 900<<10)
		put(t, w, r)
	}
	put(t, w, synced(10))
	m := newMirror()
	reached, release := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { close(reached); <-release })
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	g.Go(func() {
		_ = c.Read(ctx, pods, stream.ReadConfig{MaxBatch: 1, PullBytes: 1}, func(ctx context.Context, b delta.Batch) error {
			if len(b.Records) > 0 && b.Records[0].Key == "default/a" {
				defer hold()
			}
			return m.handle(ctx, b)
		})
	})
	defer g.Wait()
	defer cancel()
	<-reached
	put(t, w, gone("a", 11))
	eventually(t, "the tombstone's end", func() bool {
		tail, err := c.Tail(t.Context(), pods)
		return err == nil && tail.Messages == 12 // the fence, the origin, the term, eight pods and synced
	})
	put(t, w, pod("b", 12))
	close(release)
	m.until(t, "the end", func() bool { return m.revision().RV == "12" })
	if _, ok := m.live()["default/a"]; ok {
		t.Error("the reader claims revision 12 and holds an object that was deleted at 11")
	}
}
