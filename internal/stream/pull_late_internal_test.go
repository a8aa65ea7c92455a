package stream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// A reader that counts what is not under way asks anew when nothing comes. When that happens again, it begins with another consumer, as its
// counts may be wrong by now.
func TestAReaderWhoseCountsAreWrongGoesOn(t *testing.T) {
	t.Parallel()
	c := connected(t, Config{Memory: true})
	col := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	w, err := c.Writer(t.Context(), col, WriterConfig{Term: 1})
	if err != nil {
		t.Fatal(err)
	}
	tail, err := c.Tail(t.Context(), col)
	if err != nil {
		t.Fatal(err)
	}
	var pull *puller
	wrong := func() { pull.messages, pull.bytes, pull.narrow = pull.messages+10, pull.bytes+10, true }
	came := 0
	r := &reader{
		c: c, col: col, cfg: ReadConfig{MaxBatch: 10, PullBytes: 1 << 20}, contact: time.Now(),
		pos: delta.Position{Epoch: tail.Epoch, Term: tail.Term, Sequence: tail.Last}, epoch: tail.Epoch, term: tail.Term,
		handle: func(_ context.Context, b delta.Batch) error {
			came += len(b.Records)
			wrong()
			return nil
		},
	}
	cons, err := r.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if pull, err = c.puller(col.StreamName(), cons.CachedInfo().Name, demand{pullMessages, 1 << 20, 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pull.close)
	wrong()
	<-pull.sink.wake // what was asked for is over
	if batch, err := pull.gather(nil, 10); len(batch) > 0 || err != nil || pull.messages != 10 || pull.bytes != 10 {
		t.Fatalf("%d records came, %v, and %d messages and %d bytes are thought to be under way", len(batch), err, pull.messages, pull.bytes)
	}
	if err := errors.Join(w.Append(t.Context(), []delta.Record{{Kind: delta.KindLiveness}}), w.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := r.follow(t.Context(), t.Context(), cons, pull); !errors.Is(err, errConsumerLost) || !strings.Contains(err.Error(), "second time") {
		t.Errorf("it ends with %v, want the consumer to be lost the second time", err)
	}
	if came == 0 {
		t.Error("the record did not come")
	}
}
