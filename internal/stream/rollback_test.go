package stream_test

import (
	"errors"
	"os"
	"testing"

	"github.com/deltaplane/deltaplane/internal/stream"
)

// TestDesign64AReaderBeyondALogThatLostItsEndBeginsAgain: a machine that loses its power loses what no disk has yet, of the log and of the lease alike. A
// reader that had read more must not take the next leader's records for those it has: what it read and the log lost is never taken back.
func TestDesign64AReaderBeyondALogThatLostItsEndBeginsAgain(t *testing.T) {
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
