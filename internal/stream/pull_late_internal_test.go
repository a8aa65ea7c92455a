package stream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// tailing is a reader at the end of a log of its own, and what has come to it.
func tailing(t *testing.T, c *Conn) (r *reader, w *Writer, came *int) {
	t.Helper()
	col := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	w, err := c.Writer(t.Context(), col, WriterConfig{Term: 1})
	if err != nil {
		t.Fatal(err)
	}
	tail, err := c.Tail(t.Context(), col)
	if err != nil {
		t.Fatal(err)
	}
	came = new(int)
	return &reader{
		c: c, col: col, cfg: ReadConfig{MaxBatch: 10, PullBytes: 1 << 20}, contact: time.Now(),
		pos: delta.Position{Epoch: tail.Epoch, Term: tail.Term, Sequence: tail.Last}, epoch: tail.Epoch, term: tail.Term,
		handle: func(_ context.Context, b delta.Batch) error {
			*came += len(b.Records)
			return nil
		},
	}, w, came
}

// pulling asks for the reader's records, each request for as long as expires says.
func pulling(t *testing.T, r *reader, expires time.Duration) (jetstream.Consumer, *puller) {
	t.Helper()
	cons, err := r.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pull, err := r.c.puller(r.col.StreamName(), cons.CachedInfo().Name, demand{pullMessages, 1 << 20, expires})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pull.close)
	return cons, pull
}

// A reader that counts what is not under way asks anew when nothing comes. When that happens again, it begins with another consumer, as its
// counts may be wrong by now.
func TestAReaderWhoseCountsAreWrongGoesOn(t *testing.T) {
	t.Parallel()
	c := connected(t, Config{Memory: true})
	r, w, came := tailing(t, c)
	var pull *puller
	wrong := func() { pull.messages, pull.bytes, pull.narrow = pull.messages+10, pull.bytes+10, true }
	r.handle = func(_ context.Context, b delta.Batch) error {
		*came += len(b.Records)
		wrong()
		return nil
	}
	var cons jetstream.Consumer
	cons, pull = pulling(t, r, 100*time.Millisecond)
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
	if *came == 0 {
		t.Error("the record did not come")
	}
}

// gate holds up what a connection receives, as a processor does that is busy with other work.
type gate struct {
	nats.InProcessConnProvider
	closed sync.RWMutex
}

type gatedConn struct {
	net.Conn
	gate *gate
}

func (g *gate) InProcessConn() (net.Conn, error) {
	conn, err := g.InProcessConnProvider.InProcessConn()
	return gatedConn{conn, g}, err
}

func (c gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.closed.RLock()
	defer c.gate.closed.RUnlock()
	return n, err
}

// lookHandler calls look whenever a reader finds that nothing came.
type lookHandler struct {
	slog.Handler
	look func()
}

func (lookHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h lookHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "no message for longer") {
		h.look()
	}
	return nil
}

func TestAReaderThatMerelyWaitsForItsProcessorKeepsItsConsumer(t *testing.T) {
	t.Parallel()
	var o nats.Options
	if err := embeddedtest.NATS(t).InProcess()(&o); err != nil {
		t.Fatal(err)
	}
	g := &gate{InProcessConnProvider: o.InProcessServer}
	looked, looks := 0, func() {}
	c, err := Connect(t.Context(), Config{
		Memory: true, Options: []nats.Option{nats.InProcessServer(g)},
		Log: slog.New(lookHandler{slog.DiscardHandler, func() { looks() }}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, w, _ := tailing(t, c)
	cons, pull := pulling(t, r, 50*time.Millisecond)
	write := func() {
		if err := errors.Join(w.Append(t.Context(), []delta.Record{{Kind: delta.KindLiveness}}), w.Flush(t.Context())); err != nil {
			t.Error(err)
		}
	}
	looks = func() {
		if looked++; looked == 3 {
			g.closed.Unlock()
			write()
		}
	}
	enough := errors.New("the second record came")
	r.handle = func(context.Context, delta.Batch) error {
		if looked > 0 {
			return enough
		}
		g.closed.Lock()
		return nil
	}
	write()
	if err := r.follow(t.Context(), t.Context(), cons, pull); err == nil || err.Error() != enough.Error() {
		t.Errorf("after %d looks it ends with %v, want it to go on", looked, err)
	}
}

func TestAReaderWhoseConsumerIsGoneIsLost(t *testing.T) {
	t.Parallel()
	c := connected(t, Config{Memory: true})
	r, _, _ := tailing(t, c)
	cons, pull := pulling(t, r, 50*time.Millisecond)
	if err := c.js.DeleteConsumer(t.Context(), r.col.StreamName(), cons.CachedInfo().Name); err != nil {
		t.Fatal(err)
	}
	if err := r.follow(t.Context(), t.Context(), cons, pull); !errors.Is(err, errConsumerLost) {
		t.Errorf("it ends with %v, want the consumer to be lost", err)
	}
}
