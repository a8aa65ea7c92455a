package stream_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// cable is a network that can be cut: it dials, and closes what it has dialled.
type cable struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (l *cable) Dial(network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(context.Background(), network, address)
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, conn)
		l.mu.Unlock()
	}
	return conn, err
}

func (l *cable) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

func consumers(t testing.TB, js jetstream.JetStream) []*jetstream.ConsumerInfo {
	t.Helper()
	lister := streamOf(t, js).ListConsumers(t.Context())
	var out []*jetstream.ConsumerInfo
	for info := range lister.Info() {
		out = append(out, info)
	}
	if err := lister.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAThousandReconnectsLeaveNoConsumerBehind(t *testing.T) {
	t.Parallel()
	const readers, cuts = 100, 10
	url := embeddedtest.NATS(t).URL()
	line := &cable{}
	c := connect(t, url, func(cfg *stream.Config) {
		cfg.Options = []nats.Option{nats.SetCustomDialer(line), nats.ReconnectWait(time.Millisecond), nats.ReconnectJitter(0, 0)}
	})
	w := write(t, connect(t, url, nil), stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	var all []*mirror
	for range readers {
		all = append(all, follow(t, c, stream.ReadConfig{}))
	}
	for i := range cuts {
		want := strconv.Itoa(2 + i)
		put(t, w, pod("a", 2+i))
		for _, m := range all {
			m.until(t, "the record after "+strconv.Itoa(i)+" cuts", func() bool { return m.revision().RV == want })
		}
		line.cut()
	}
	put(t, w, pod("a", 1000))
	for _, m := range all {
		m.until(t, "the last record", func() bool { return m.revision().RV == "1000" })
		if m.resets != 1 {
			t.Errorf("%d resets, want every read to resume", m.resets)
		}
	}
	js := operator(t, url)
	eventually(t, "one consumer for each reader", func() bool { return len(consumers(t, js)) == readers })
}

func TestAHandlerThatIsSlowIsSentNoMoreThanItsPulls(t *testing.T) {
	t.Parallel()
	const size, pulls = 256 << 10, 2 << 20
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, func(cfg *stream.Config) { cfg.MaxPayload = 1 << 20 })
	w := write(t, c, stream.WriterConfig{Term: 1})
	for i := range 100 {
		r := pod("p"+strconv.Itoa(i), i+1)
		r.Payload = make([]byte, size)
		if err := w.Append(t.Context(), []delta.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, w, synced(100))
	held, release := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { close(held); <-release })
	m := newMirror()
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	g.Go(func() {
		_ = c.Read(ctx, pods, stream.ReadConfig{PullBytes: pulls, MaxBatch: 1}, func(ctx context.Context, b delta.Batch) error {
			if len(b.Records) > 0 && b.Records[0].Kind == delta.KindDelta {
				hold()
			}
			return m.handle(ctx, b)
		})
	})
	defer g.Wait()
	defer cancel()
	<-held
	js := operator(t, url)
	sent := uint64(0)
	eventually(t, "the server to stop sending", func() bool {
		was := sent
		sent = consumers(t, js)[0].Delivered.Consumer
		time.Sleep(50 * time.Millisecond)
		return sent == was && sent > 2
	})
	if most := uint64(pulls/size + 5); sent > most { // and what precedes the pods
		t.Errorf("%d records of %d KiB were sent to a handler that takes none, want at most %d", sent, size>>10, most)
	}
	close(release)
	m.until(t, "the end", func() bool { return m.revision().RV == "100" && len(m.live()) == 100 })
}

// A record from before the log's limit was lowered is larger than anything that the configuration
// lets a reader expect.
func TestARecordLargerThanRequestsArrives(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	limit := func(bytes int) func(*stream.Config) {
		return func(cfg *stream.Config) { cfg.MaxPayload = bytes }
	}
	w := write(t, connect(t, url, limit(8<<20)), stream.WriterConfig{Term: 1})
	r := pod("large", 1)
	r.Payload = make([]byte, 5<<20)
	put(t, w, r, pod("a", 2), synced(2))
	w.Close()
	c := connect(t, url, limit(1<<20))
	put(t, write(t, c, stream.WriterConfig{Term: 2}), pod("b", 3), synced(3))
	if got := streamOf(t, operator(t, url)).CachedInfo().Config.MaxMsgSize; got != 1<<20 {
		t.Fatalf("the log takes records of %d bytes, want its limit lowered", got)
	}
	m := follow(t, c, stream.ReadConfig{PullBytes: 1})
	m.until(t, "all records", func() bool { return m.revision().RV == "3" && len(m.live()) == 3 })
}

// What one reader does not take holds up no other reader of the connection.
func TestASlowReaderHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), func(cfg *stream.Config) { cfg.MaxPayload = 1 << 20 })
	flooded := write(t, c, stream.WriterConfig{Term: 1})
	for i := range 50 {
		r := pod("p"+strconv.Itoa(i), i+1)
		r.Payload = make([]byte, 256<<10)
		if err := flooded.Append(t.Context(), []delta.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, flooded, synced(50))
	quiet := delta.Collection{Cluster: "dev", Version: "v1", Resource: "configmaps"}
	w, err := c.Writer(t.Context(), quiet, stream.WriterConfig{Term: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan struct{})
	var g sync.WaitGroup
	defer g.Wait()
	defer cancel()
	g.Go(func() {
		_ = c.Read(ctx, pods, stream.ReadConfig{PullBytes: 2 << 20}, func(ctx context.Context, b delta.Batch) error {
			if len(b.Records) > 0 && b.Records[0].Kind == delta.KindDelta {
				close(held)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
	})
	<-held
	records := make(chan delta.Record, 100)
	g.Go(func() {
		_ = c.Read(ctx, quiet, stream.ReadConfig{}, func(_ context.Context, b delta.Batch) error {
			for _, r := range b.Records {
				records <- r
			}
			return nil
		})
	})
	for i := range 20 {
		r := pod("a", i+1)
		if err := w.Append(t.Context(), []delta.Record{r}); err != nil {
			t.Fatal(err)
		}
		for got := (delta.Record{}); got.RV != r.RV; {
			select {
			case got = <-records:
			case <-time.After(20 * time.Second):
				t.Fatalf("record %d did not come", i)
			}
		}
	}
}

func TestARefusalThatPersistsIsWaitedOut(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	r := pod("b", 2) // of an epoch that no term began: each replay ends at it
	r.Collection, r.Epoch, r.Term = pods, w.Epoch()+1, 1
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.PublishMsg(&nats.Msg{Subject: r.Subject(), Header: r.Header(), Data: r.Payload}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var resets atomic.Int32
	var first time.Time
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = c.Read(ctx, pods, stream.ReadConfig{}, func(_ context.Context, b delta.Batch) error {
		if b.Reset {
			switch resets.Add(1) {
			case 1:
				first = time.Now()
			case 5:
				cancel()
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// The first refusal costs nothing; then 100, 200 and 400 ms at least.
	if took := time.Since(first); took < 700*time.Millisecond {
		t.Errorf("5 replays in %v: refused again and again without a pause", took)
	}
}

func TestAReaderAtTheEndOfTheLogIsCaughtUpBeforeItReads(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1), synced(1))
	tail, err := c.Tail(t.Context(), pods)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var first, second delta.Batch
	err = c.Read(ctx, pods, stream.ReadConfig{
		From: delta.Position{Epoch: tail.Epoch, Term: tail.Term, Sequence: tail.Last}, Created: tail.Created, CatchUp: true,
	}, func(_ context.Context, b delta.Batch) error {
		if first.Next == 0 {
			first = b
			put(t, w, pod("b", 2))
		} else {
			second = b
			stop()
		}
		return nil
	})
	if err != nil || !first.Replayed || first.Reset || len(first.Records) > 0 || first.Next != tail.Last+1 {
		t.Errorf("the first batch is %+v, %v, want the end at %d", first, err, tail.Last)
	}
	if second.Replayed || second.Next != tail.Last+2 || len(second.Records) != 1 || second.Records[0].Key != pod("b", 2).Key {
		t.Errorf("the second batch is %+v, want the record behind the end", second)
	}
}
