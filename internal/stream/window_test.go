package stream_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// narrow forwards connections to a NATS server; all of them together carry so many bytes a second
// towards it, as soon as that is not 0.
type narrow struct {
	url    string
	rate   atomic.Int64
	passed atomic.Int64
}

func newNarrow(t testing.TB, url string) *narrow {
	t.Helper()
	n := &narrow{}
	n.url = relay(t, url, n.carry)
	t.Cleanup(func() { n.rate.Store(0) }) // what is on its way ends soon
	return n
}

func (n *narrow) carry(out io.Writer, in io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		got, err := in.Read(buf)
		if r := n.rate.Load(); r > 0 {
			time.Sleep(time.Duration(got) * time.Second / time.Duration(r))
		}
		n.passed.Add(int64(got))
		if _, werr := out.Write(buf[:got]); err != nil || werr != nil {
			return
		}
	}
}

func object(key string, rv int, bytes int) []delta.Record {
	return []delta.Record{{
		Kind: delta.KindDelta, Key: delta.Key("default/" + key), Type: delta.Updated, RV: fmt.Sprint(rv),
		Payload: make([]byte, bytes), Encoding: delta.EncodingJSON,
	}}
}

// A connection is a queue: what one collection has put into it, another one's record waits for.
// Told by bytes, not by time: how much of the flood passes between a record's append and its
// acknowledgement.
func TestARecordOvertakesWhatAFloodOfAnotherCollectionHasToSay(t *testing.T) {
	t.Parallel()
	link := newNarrow(t, embeddedtest.NATS(t).URL())
	c := connect(t, link.url, nil)
	flooded := write(t, c, stream.WriterConfig{Term: 1, Holder: "a"})
	quiet, err := c.Writer(t.Context(), delta.Collection{Cluster: "dev", Version: "v1", Resource: "configmaps"}, stream.WriterConfig{Term: 1, Holder: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	const size = 20 << 10 // as many as a writer may have in flight are 5 MB
	flood.Go(func() {
		for i := 1; flooded.Append(ctx, object(fmt.Sprint(i%100), i, size)) == nil; i++ {
		}
	})
	eventually(t, "the flood", func() bool { return link.passed.Load() > 10<<20 })
	link.rate.Store(8 << 20)
	at := link.passed.Load()
	// What is in flight was right for the link as it was: it passes once until it is measured, and
	// once until the window has shrunk.
	eventually(t, "the flood on the slow link", func() bool { return link.passed.Load()-at > 16<<20 })
	least := int64(1 << 40) // of some: while the machine is busy elsewhere the flood passes too
	for i := range 5 {
		at := link.passed.Load()
		if err := quiet.Append(t.Context(), object("c", i+1, 100)); err != nil {
			t.Fatal(err)
		}
		if err := quiet.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		least = min(least, link.passed.Load()-at)
	}
	if least > 1<<20 {
		t.Errorf("each record waited for %d KB of the flood or more", least>>10)
	}
}
