package stream_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// TestAReaderBeyondALogThatLostItsEndBeginsAgain: a machine that loses its power loses what no disk
// has yet, of the log and of the lease alike. A reader that had read more must not take the next
// leader's records for those it has: what it read and the log lost is never taken back.
func TestAReaderBeyondALogThatLostItsEndBeginsAgain(t *testing.T) {
	t.Parallel()
	dir, kept := t.TempDir(), t.TempDir()
	n := startNATS(t, dir, "127.0.0.1:0")
	url := n.URL()
	w := write(t, connect(t, url, nil), stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	n.Stop()
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	n = startNATS(t, dir, url[len("nats://"):])
	put(t, w, pod("ghost", 2))
	reader := connect(t, url, nil)
	m := newMirror()
	stop := m.read(t, reader, stream.ReadConfig{})
	m.until(t, "the object that will be lost", func() bool { return m.revision().RV == "2" })
	stop()
	at := m.follower.Position()
	n.Stop()
	startNATS(t, kept, url[len("nats://"):])
	next := write(t, connect(t, url, nil), stream.WriterConfig{Term: 2}) // whose lease does not know better
	if next.Fresh() {
		t.Fatal("the lease knew; nothing is tested")
	}
	put(t, next, pod("a", 3))
	m.read(t, reader, stream.ReadConfig{From: at})
	m.until(t, "the end", func() bool { return m.revision().RV == "3" })
	if err := reader.Check(t.Context(), pods, at); !errors.Is(err, stream.ErrBootstrap) {
		t.Errorf("position %+v of a log that ended at %d: Check() = %v, want ErrBootstrap", at, w.Acked()-1, err)
	}
	if live := m.live(); len(live) != 1 || m.resets != 2 {
		t.Errorf("%v after %d resets, want the lost object swept", live, m.resets)
	}
}

// A writer that finds the log's end below what was acknowledged to it does not go on there: what
// the log has lost its readers may have read, and nothing that it appends could take it back.
func TestAWriterWhoseAcknowledgedEndIsLostEnds(t *testing.T) {
	t.Parallel()
	dir, kept := t.TempDir(), t.TempDir()
	n := startNATS(t, dir, "127.0.0.1:0")
	url := n.URL()
	w := write(t, connect(t, url, nil), stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	n.Stop()
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	n = startNATS(t, dir, url[len("nats://"):])
	put(t, w, pod("lost", 2)) // one record alone
	acked := w.Acked()
	n.Stop()
	startNATS(t, kept, url[len("nats://"):])
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := errors.Join(w.Append(ctx, []delta.Record{pod("next", 3)}), w.Flush(ctx)); !errors.Is(err, stream.ErrLogLost) {
		t.Errorf("Flush() = %v, want ErrLogLost", err)
	}
	if err := w.Append(ctx, []delta.Record{pod("later", 4)}); !errors.Is(err, stream.ErrLogLost) {
		t.Errorf("Append() after it = %v, want ErrLogLost for good", err)
	}
	tail, err := connect(t, url, nil).Tail(t.Context(), pods)
	if err != nil || tail.Last != acked-1 {
		t.Errorf("the log ends at %d, %v; want %d, where it was cut", tail.Last, err, acked-1)
	}
}
