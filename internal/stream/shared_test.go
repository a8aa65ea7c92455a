package stream_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

func startNATS(t testing.TB, dir, listen string) *embedded.NATS {
	t.Helper()
	n, err := embedded.StartNATS(embedded.NATSConfig{Dir: dir, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

// desk collects what shared consumers are given.
type desk struct {
	mu   sync.Mutex
	keys map[delta.Key]int
	gaps []stream.Gap
	fail int
}

func (d *desk) handle(_ context.Context, w stream.Work) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.Gap != "" {
		d.gaps = append(d.gaps, w.Gap)
		return nil
	}
	if d.fail > 0 {
		d.fail--
		return errors.New("not now")
	}
	for _, r := range w.Records {
		if r.Payload != nil {
			return errors.New("a headers-only consumer got a payload")
		}
		d.keys[r.Key]++
	}
	return nil
}

func (d *desk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.keys)
}

func (d *desk) lastGap() stream.Gap {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.gaps) == 0 {
		return ""
	}
	return d.gaps[len(d.gaps)-1]
}

func consume(t testing.TB, c *stream.Conn, d *desk) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Consume(ctx, stream.ConsumeConfig{
			Name: "job", Collections: []delta.Collection{pods}, HeadersOnly: true, AckWait: 5 * time.Second,
		}, d.handle)
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Consume() = %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not seen in time", what)
		}
	}
}

// recreate makes a stream that was deleted a moment ago: the server may still be taking away the
// files of the old one, and refuse.
func recreate(t testing.TB, js jetstream.JetStream, cfg jetstream.StreamConfig) {
	t.Helper()
	eventually(t, "the stream made again", func() bool {
		_, err := js.CreateStream(t.Context(), cfg)
		if err != nil {
			t.Logf("made again: %v", err)
		}
		return err == nil
	})
}

func TestReplicasShareADurableConsumerAndEveryGapIsReported(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	d := &desk{keys: map[delta.Key]int{}, fail: 1}
	stop1, stop2 := consume(t, c, d), consume(t, c, d)
	w := write(t, c, stream.WriterConfig{Term: 1})
	for i := range 40 {
		put(t, w, pod(string(rune('a'+i%26))+string(rune('a'+i/26)), i+1))
	}
	eventually(t, "all keys, also those of the batch that failed once", func() bool { return d.count() == 40 })
	if got := d.lastGap(); got != stream.GapNew {
		t.Errorf("gap %q, want %q", got, stream.GapNew)
	}
	stop1()
	put(t, w, pod("later", 100))
	eventually(t, "a record after one replica stopped", func() bool { return d.count() == 41 })
	stop2()
	if err := w.NewEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	consume(t, c, d)
	eventually(t, "the new epoch", func() bool { return d.lastGap() == stream.GapEpoch })
	if err := c.Remove(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	next := write(t, c, stream.WriterConfig{Term: 2, NewEpoch: true})
	put(t, next, pod("again", 1))
	eventually(t, "the log made again", func() bool { return d.lastGap() == stream.GapLost && d.count() == 42 })
}

func TestALeaseHasOneHolderAndItsTermsGrow(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c1, c2 := connect(t, url, nil), connect(t, url, nil)
	cfg := stream.LeaseConfig{Name: "dev/pods.v1", Holder: "one", TTL: time.Second}
	first, err := c1.Lease(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	first.Report(7, 42)
	cfg.Holder = "two"
	short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if _, err := c2.Lease(short, cfg); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second holder while the first renews: %v, want to wait", err)
	}
	c1.Close() // the first can renew no more
	second, err := c2.Lease(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-first.Lost():
	case <-time.After(5 * time.Second):
		t.Error("the first holder does not notice")
	}
	if second.Term <= first.Term || second.Acked != 42 || second.Epoch != 7 {
		t.Errorf("term %d after %d, acked %d; want a higher term and what the last holder reported", second.Term, first.Term, second.Acked)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	third, err := c2.Lease(t.Context(), stream.LeaseConfig{Name: cfg.Name, Holder: "three", TTL: 5 * time.Second, Floor: func() uint64 { return 1000 }})
	if err != nil {
		t.Fatal(err)
	}
	if third.Term <= 1000 || time.Since(began) > 3*time.Second {
		t.Errorf("term %d after %v; want above the floor, and a released lease at once", third.Term, time.Since(began))
	}
	if err := third.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = first.Release(context.Background())
}

func TestABucketKeepsAnyKeyAndRefusesStaleUpdates(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	b, err := c.Bucket(t.Context(), "state", 0)
	if err != nil {
		t.Fatal(err)
	}
	const key = "dev/pods.v1: a=b %2E é*>"
	if _, err := b.Get(t.Context(), key); !errors.Is(err, stream.ErrNoKey) {
		t.Errorf("Get() = %v, want ErrNoKey", err)
	}
	rev, err := b.Update(t.Context(), key, []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Update(t.Context(), key, []byte("2"), 0); !errors.Is(err, stream.ErrConflict) {
		t.Errorf("create of a key that exists = %v, want ErrConflict", err)
	}
	if _, err := b.Update(t.Context(), key, []byte("2"), rev); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Update(t.Context(), key, []byte("3"), rev); !errors.Is(err, stream.ErrConflict) {
		t.Errorf("stale update = %v, want ErrConflict", err)
	}
	all, err := b.Entries(t.Context())
	if err != nil || len(all) != 1 || all[0].Key != key || string(all[0].Value) != "2" {
		t.Errorf("Entries() = %+v, %v", all, err)
	}
	if err := b.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if all, err := b.Entries(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("Entries() after Delete = %+v, %v", all, err)
	}
}

func TestAStreamThatSomebodyElseMadeIsRefused(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: pods.StreamName(), Subjects: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Writer(t.Context(), pods, stream.WriterConfig{Term: 1}); !errors.Is(err, stream.ErrForeign) {
		t.Errorf("Writer() = %v, want ErrForeign", err)
	}
}

func TestConnectNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := stream.Connect(t.Context(), stream.Config{Replicas: 9, TombstoneTTL: time.Millisecond, MaxPayload: 3})
	for _, want := range []string{"replicas", "tombstone ttl", "max payload"} {
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("Connect() = %v, want all faults together, among them %q", err, want)
		}
	}
	if _, err := stream.Connect(t.Context(), stream.Config{URL: "nats://127.0.0.1:1"}); err == nil {
		t.Error("Connect() to nobody = nil")
	}
}

func TestConnectNeverQuotesAPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"nats://user:hunter2%zz@127.0.0.1:1", "nats://user:hunter2@127.0.0.1:port", "nats://user:hunter2@127.0.0.1:1", "nats://hunter2@[::1", "nats://a:1,nats://u:hunter2@%zz",
	} {
		_, err := stream.Connect(t.Context(), stream.Config{URL: url})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Connect() = %v", err)
		}
	}
}

func TestAConsumerWhoseHandlerFailsForLongerThanTheTombstoneTTLReportsALag(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), func(cfg *stream.Config) { cfg.TombstoneTTL = time.Second })
	w := write(t, c, stream.WriterConfig{Term: 1}) // before the consumer, which reports a new epoch otherwise, at any time
	d := &desk{keys: map[delta.Key]int{}}
	consume(t, c, d)
	put(t, w, pod("a", 1))
	eventually(t, "the key", func() bool { return d.count() == 1 })
	d.mu.Lock()
	d.fail, d.gaps = 1<<30, nil
	d.mu.Unlock()
	put(t, w, gone("b", 2))
	before := w.Acked()
	eventually(t, "the tombstone's end", func() bool {
		tail, err := c.Tail(t.Context(), pods)
		return err == nil && tail.Last == before && tail.Messages == 4 // the fence, the origin, the term and a
	})
	d.mu.Lock()
	d.fail = 0
	d.mu.Unlock()
	eventually(t, "a lag, as nobody can hand out the deletion any more", func() bool { return d.lastGap() == stream.GapLag })
}

func TestARecordThatCannotBeReadIsNeverSkippedSilently(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	w := write(t, c, stream.WriterConfig{Term: 1})
	put(t, w, pod("a", 1))
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	r := pod("future", 2)
	r.Collection = pods
	msg := &nats.Msg{Subject: r.Subject(), Header: r.Header()}
	msg.Header.Set(delta.HeaderVersion, "99")
	if err := nc.PublishMsg(msg); err != nil {
		t.Fatal(err)
	}
	got := make(chan delta.Record, 16)
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	g.Go(func() {
		_ = c.Consume(ctx, stream.ConsumeConfig{Name: "job", Collections: []delta.Collection{pods}}, func(_ context.Context, w stream.Work) error {
			for _, r := range w.Records {
				got <- r
			}
			return nil
		})
	})
	defer g.Wait()
	defer cancel()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case r := <-got:
			if r.Key != "default/future" {
				continue
			}
			if !r.Overflow || r.Kind != delta.KindDelta || r.Collection != pods {
				t.Errorf("the record is handed over as %+v, want its key and overflow", r)
			}
			return
		case <-deadline:
			t.Fatal("the record was skipped")
		}
	}
}

// fullNATS has room for some megabytes.
func fullNATS(t testing.TB) *embedded.NATS {
	t.Helper()
	n, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0", MaxStore: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}
