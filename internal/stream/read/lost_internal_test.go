package read

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream/link"
	"github.com/deltaplane/deltaplane/internal/stream/write"
)

// tailing is a reader at the end of a log of its own, and what has come to it.
func tailing(t *testing.T, c *link.Conn) (r *reader, w *write.Writer, came *int) {
	t.Helper()
	col := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	w, err := write.New(t.Context(), c, col, write.Config{Term: 1})
	if err != nil {
		t.Fatal(err)
	}
	tail, err := c.Tail(t.Context(), col)
	if err != nil {
		t.Fatal(err)
	}
	came = new(int)
	return &reader{
		c: c, col: col, cfg: Config{MaxBatch: 10, PullBytes: 1 << 20}, contact: time.Now(),
		pos: delta.Position{Epoch: tail.Epoch, Term: tail.Term, Sequence: tail.Last}, epoch: tail.Epoch, term: tail.Term,
		handle: func(_ context.Context, b delta.Batch) error {
			*came += len(b.Records)
			return nil
		},
	}, w, came
}

// opened is the reader's consumer, and what it is sent.
func opened(t *testing.T, r *reader) (jetstream.Consumer, *deliveries) {
	t.Helper()
	cons, err := r.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in, err := deliver(cons, pullMessages, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.close)
	return cons, in
}

// gate holds up what a connection receives, as a processor does that is busy with other work, and
// may lead a request astray.
type gate struct {
	nats.InProcessConnProvider
	closed sync.RWMutex
	lose   atomic.Bool // the next request for records goes to another subject
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

func (c gatedConn) Write(p []byte) (int, error) {
	const next, lost = "CONSUMER.MSG.NEXT", "CONSUMER.MSG.LOST"
	if bytes.Contains(p, []byte(next)) && c.gate.lose.CompareAndSwap(true, false) {
		return c.Conn.Write(bytes.Replace(p, []byte(next), []byte(lost), 1))
	}
	return c.Conn.Write(p)
}

// gated is a connection through a gate. look is called whenever a reader finds that the server
// answers no request.
func gated(t *testing.T, look func()) (*link.Conn, *gate) {
	t.Helper()
	var o nats.Options
	if err := embeddedtest.NATS(t).InProcess()(&o); err != nil {
		t.Fatal(err)
	}
	g := &gate{InProcessConnProvider: o.InProcessServer}
	c, err := link.Dial(t.Context(), link.Config{
		Memory: true, Options: []nats.Option{nats.InProcessServer(g)}, Log: slog.New(lookHandler{slog.DiscardHandler, look}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, g
}

// lookHandler calls look for what a reader says when its requests are not answered.
type lookHandler struct {
	slog.Handler
	look func()
}

func (lookHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h lookHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "the server answers no request") {
		h.look()
	}
	return nil
}

func one(t *testing.T, w *write.Writer) {
	if err := errors.Join(w.Append(t.Context(), []delta.Record{{Kind: delta.KindLiveness}}), w.Flush(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestAReaderThatMerelyWaitsForItsProcessorKeepsItsConsumer(t *testing.T) {
	t.Parallel()
	looked, looks := 0, func() {}
	c, g := gated(t, func() { looks() })
	r, w, _ := tailing(t, c)
	cons, in := opened(t, r)
	looks = func() {
		if looked++; looked == 2 {
			g.closed.Unlock()
			one(t, w)
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
	one(t, w)
	if err := r.follow(t.Context(), t.Context(), cons, in); err == nil || err.Error() != enough.Error() {
		t.Errorf("after %d looks it ends with %v, want it to go on", looked, err)
	}
}

// A request that the server never got is repeated, by the same consumer.
func TestARequestThatIsLostIsRepeated(t *testing.T) {
	t.Parallel()
	c, g := gated(t, func() {})
	r, w, _ := tailing(t, c)
	if _, err := c.NATS.Subscribe(jetstream.DefaultAPIPrefix+"CONSUMER.MSG.LOST.>", func(*nats.Msg) {}); err != nil { // who answers nothing
		t.Fatal(err)
	}
	g.lose.Store(true)
	cons, in := opened(t, r)
	enough := errors.New("the record came")
	r.handle = func(context.Context, delta.Batch) error { return enough }
	one(t, w)
	if err := r.follow(t.Context(), t.Context(), cons, in); err == nil || err.Error() != enough.Error() {
		t.Errorf("it ends with %v, want the record", err)
	}
	if g.lose.Load() {
		t.Error("no request was lost")
	}
}

func TestAReaderWhoseConsumerIsGoneIsLost(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{Memory: true})
	r, _, _ := tailing(t, c)
	cons, in := opened(t, r)
	if err := c.JetStream.DeleteConsumer(t.Context(), r.col.StreamName(), cons.CachedInfo().Name); err != nil {
		t.Fatal(err)
	}
	if err := r.follow(t.Context(), t.Context(), cons, in); !errors.Is(err, errConsumerLost) {
		t.Errorf("it ends with %v, want the consumer to be lost", err)
	}
}

// A server that answers, but no request for records, does not serve the consumer.
func TestAConsumerWhoseRequestsAreNotAnsweredIsLostAfterAWhile(t *testing.T) {
	t.Parallel()
	r, _, _ := tailing(t, connected(t, link.Config{Memory: true}))
	cons, in := opened(t, r)
	if err := r.unheard(t.Context(), cons, in, pullSilence-1); err != nil {
		t.Errorf("before that it is %v", err)
	}
	if err := r.unheard(t.Context(), cons, in, pullSilence); !errors.Is(err, errConsumerLost) {
		t.Errorf("after it is %v, want the consumer to be lost", err)
	}
}
