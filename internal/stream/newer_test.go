package stream_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// halting is a mirror that notes why the reader stands still.
type halting struct {
	*mirror
	mu     sync.Mutex
	newer  *delta.NewerError
	passed []delta.Passed
}

func (h *halting) handle(ctx context.Context, b delta.Batch) error {
	h.mu.Lock()
	h.newer = b.Newer
	h.passed = append(h.passed, b.Passed...)
	h.mu.Unlock()
	return h.mirror.handle(ctx, b)
}

func (h *halting) halted() *delta.NewerError {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newer
}

// inject writes a record as another build would, past the writer.
func inject(t *testing.T, url string, w *stream.Writer, r delta.Record, subject string, header map[string]string) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	r.Collection, r.Epoch, r.Term = pods, w.Epoch(), w.Term()
	if subject == "" {
		subject = r.Subject()
	}
	msg := &nats.Msg{Subject: subject, Header: r.Header(), Data: r.Payload}
	for name, value := range header {
		msg.Header[name] = []string{value}
	}
	if err := errors.Join(nc.PublishMsg(msg), nc.Flush()); err != nil {
		t.Fatal(err)
	}
}

// A reader never goes past a record that a later build must read: what it holds, and claims, is the
// log's state before it. Once the record is replaced by one that it reads, it goes on.
func TestAReaderStandsStillBeforeARecordOfALaterBuild(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	w := write(t, connect(t, url, func(cfg *stream.Config) { cfg.Build = "v9" }), stream.WriterConfig{Term: 1, Holder: "r1"})
	put(t, w, pod("a", 1), pod("b", 2), synced(2))
	h := &halting{mirror: newMirror()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Read(ctx, pods, stream.ReadConfig{}, h.handle) }()
	defer func() { cancel(); <-done }()
	h.until(t, "the list", func() bool { return h.mirror.revision().RV == "2" })
	last := w.Acked()
	inject(t, url, w, delta.Record{Kind: delta.KindProgress, Watermark: "9"}, pods.ControlSubject(delta.KindProgress)+"2", map[string]string{delta.HeaderKind: "progress2"})
	inject(t, url, w, pod("a", 3), "", map[string]string{delta.HeaderVersion: "2"})
	inject(t, url, w, pod("b", 4), "", nil)
	eventually(t, "the reader says that it stands still", func() bool { return h.halted() != nil })
	if n := h.halted(); n.Sequence != last+2 || n.Unknown.Part != delta.PartVersion || n.Writer != "r1" || n.Build != "v9" {
		t.Errorf("it stands still because %v (%+v), want record %d of r1", n, n, last+2)
	}
	h.mu.Lock()
	if len(h.passed) != 1 || h.passed[0].Unknown.Value != "progress2" || h.passed[0].Sequence != last+1 {
		t.Errorf("passed over %+v, want the control record of an unknown kind", h.passed)
	}
	h.mu.Unlock()
	if got := h.live(); got["default/a"] != "1" || got["default/b"] != "2" || h.revision().RV != "2" {
		t.Errorf("it holds %v at %v, want the state before the record", got, h.revision())
	}

	w2 := write(t, c, stream.WriterConfig{Term: 2})
	put(t, w2, pod("a", 5))
	h.until(t, "the record was replaced", func() bool {
		return h.revision().RV == "5" && h.live()["default/a"] == "5" && h.live()["default/b"] == "4"
	})
	h.mirror.mu.Lock()
	defer h.mirror.mu.Unlock()
	if h.resets != 1 || h.halted() != nil {
		t.Errorf("%d resets, halted: %v; want the reader to go on", h.resets, h.halted())
	}
}

// While a reader stands still, deletions behind that record leave the log. One that stood still for
// longer than they are kept begins again instead of keeping what was deleted.
func TestAReaderThatStoodStillTooLongBeginsAgain(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	short := func(cfg *stream.Config) { cfg.TombstoneTTL = time.Second }
	c := connect(t, url, short)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), pod("b", 2), synced(2))
	h := &halting{mirror: newMirror()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Read(ctx, pods, stream.ReadConfig{}, h.handle) }()
	defer func() { cancel(); <-done }()
	h.until(t, "the list", func() bool { return h.revision().RV == "2" })
	inject(t, url, w, pod("a", 3), "", map[string]string{delta.HeaderVersion: "2"})
	eventually(t, "the reader stands still", func() bool { return h.halted() != nil })
	w2 := write(t, c, stream.WriterConfig{Term: 2})
	put(t, w2, gone("b", 4))
	before, err := c.Tail(t.Context(), pods)
	if err != nil {
		t.Fatal(err)
	}
	rv := 4
	eventually(t, "the deletion leaves the log", func() bool {
		rv++ // the record is always young
		inject(t, url, w2, pod("a", rv), "", map[string]string{delta.HeaderVersion: "2"})
		tail, err := c.Tail(t.Context(), pods)
		return err == nil && tail.Messages < before.Messages
	})
	last := strconv.Itoa(rv + 1)
	put(t, write(t, c, stream.WriterConfig{Term: 3}), pod("a", rv+1))
	h.until(t, "the record was replaced", func() bool { return h.revision().RV == last && h.live()["default/a"] == last })
	if got := h.live(); len(got) != 1 {
		t.Errorf("it holds %v, want what was deleted to be gone", got)
	}
}

// While a leader announces records that this build cannot read, the build neither writes the log
// nor gives up the content that it has for the beginning of a new epoch.
func TestALogOfALaterBuildIsNeitherWrittenNorBegunAgain(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	h := &halting{mirror: newMirror()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Read(ctx, pods, stream.ReadConfig{}, h.handle) }()
	defer func() { cancel(); <-done }()
	h.until(t, "the list", func() bool { return h.revision().RV == "1" })
	inject(t, url, w, delta.Record{Kind: delta.KindTerm, Start: w.Acked() + 1, Writer: "r2"}, "", map[string]string{
		delta.HeaderNeeds: "2", delta.HeaderTerm: "5", delta.HeaderEpoch: "99999999999999",
	})
	eventually(t, "the reader says that it stands still", func() bool { return h.halted() != nil })
	h.mirror.mu.Lock()
	resets, at := h.resets, h.follower.Revision()
	h.mirror.mu.Unlock()
	if n := h.halted(); n.Sequence != 0 || n.Writer != "r2" || resets != 1 || at.RV != "1" {
		t.Errorf("halted by %v after %d resets at %v; want the content kept", n, resets, at)
	}
	tail, err := c.Tail(t.Context(), pods)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Writer(t.Context(), pods, stream.WriterConfig{Term: 6}); err == nil {
		t.Error("an older build took the log over")
	} else if unknown, ok := errors.AsType[*delta.UnknownError](err); !ok || unknown.Value != "2" {
		t.Errorf("the takeover failed with %v, want the version named", err)
	}
	if after, err := c.Tail(t.Context(), pods); err != nil || after.Last != tail.Last {
		t.Errorf("the log ends at %d after the refused takeover, %d before (%v)", after.Last, tail.Last, err)
	}
}
