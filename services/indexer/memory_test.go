package indexer_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// many are pods of a few templates, some KB each.
func many(from, n, pad int) []delta.Record {
	records := make([]delta.Record, n)
	for i := range records {
		template := (from + i) % 7
		records[i] = pod(fmt.Sprintf("n/p%d", from+i), options{
			node: fmt.Sprint("n", i%9), labels: fmt.Sprintf("app=a%d", template),
		})
		text := strings.Repeat(fmt.Sprintf("value-%d of template %d;", template*31, template), pad/24)
		records[i].Payload = bytes.Replace(records[i].Payload, []byte(`"pad":""`), fmt.Appendf(nil, `"pad":%q`, text), 1)
	}
	return records
}

// status waits until the collection is as wanted.
func (r *replica) status(t testing.TB, what string, collection string, want func(*indexv1.CollectionStatus) bool) *indexv1.CollectionStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last *indexv1.CollectionStatus
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		all, err := r.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		if err != nil {
			t.Fatalf("%s: %v, last seen %v", what, err, last)
		}
		for _, c := range all.GetCollections() {
			if c.GetCollection() == collection {
				if last = c; want(c) {
					tick.Stop()
					return c
				}
			}
		}
		<-tick.C
	}
}

func TestACompactCollectionReadsTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 600, 2000)...)
	raw := w.index(t, nil)
	compact := w.index(t, func(c *indexer.Config) { c.Tier = indexer.TierCompact })
	w.caughtUp(t, raw)
	w.caughtUp(t, compact)
	small := compact.status(t, "compressed", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return c.GetStoredBytes()*4 < c.GetBytes() })
	if small.GetTier() != indexv1.Tier_TIER_COMPACT || small.GetMemoryBytes() < small.GetStoredBytes() {
		t.Errorf("status %v", small)
	}
	if c := raw.status(t, "raw", "dev/pods.v1", func(*indexv1.CollectionStatus) bool { return true }); c.GetTier() != indexv1.Tier_TIER_RAW || c.GetStoredBytes() != c.GetBytes() {
		t.Errorf("status %v", c)
	}
	for _, node := range []string{"n1", "n2", "n8"} {
		var texts [2]string
		for i, r := range []*replica{raw, compact} {
			got, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{node}})
			if err != nil || len(got.GetObjects()) < 60 {
				t.Fatalf("ByIndex: %d objects, %v", len(got.GetObjects()), err)
			}
			for _, o := range got.GetObjects() {
				texts[i] += o.String()
			}
		}
		if texts[0] != texts[1] {
			t.Errorf("the tiers answer differently for %s", node)
		}
	}
}

// other is a second collection beside pods.
var other = delta.Collection{Cluster: "dev", Version: "v1", Resource: "services"}

func TestACollectionThatPassesTheBudgetIsRefusedUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.lead(t, other, false)
	write(t, x, w.stamp(many(0, 20, 500))...)
	w.rv++
	write(t, x, delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(w.rv), Watermark: strconv.Itoa(w.rv)})
	w.start(t, many(0, 200, 2000)...)
	r := w.index(t, func(c *indexer.Config) { c.Tier, c.MemoryBudget = indexer.TierRaw, 2<<20 })
	w.caughtUp(t, r)
	watch, err := r.Watch(t.Context(), &indexv1.WatchRequest{Collection: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	for i := 200; i < 1500; i += 100 { // it grows while it is read
		w.put(t, many(i, 100, 2000)...)
	}
	refused := r.status(t, "refused", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return strings.Contains(c.GetLastError(), "memory budget") })
	if refused.GetObjects() != 0 || refused.GetSynced() {
		t.Errorf("status %v: it is not released", refused)
	}
	for err == nil {
		_, err = watch.Recv()
	}
	wantStatus(t, "watch", err, codes.ResourceExhausted, "MEMORY_BUDGET", "")
	_, err = r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "n/p1"})
	wantStatus(t, "get", err, codes.ResourceExhausted, "MEMORY_BUDGET", "")
	meta := rpc.Info(err).GetMetadata()
	if n, _ := strconv.Atoi(meta["bytes"]); n < 1<<20 || meta["collection"] != "dev/pods.v1" || meta["budget_bytes"] != strconv.Itoa(2<<20) {
		t.Errorf("metadata %v, want the collection, its bytes and the budget", meta)
	}
	if rpc.RetryDelay(err) <= 0 {
		t.Error("no RetryInfo")
	}
	_, err = r.Watch(t.Context(), &indexv1.WatchRequest{Collection: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "services", Key: "n/p1"}); err != nil {
		t.Errorf("another collection: %v", err)
	}
	// Most of it is deleted: the log holds a tombstone of some hundred bytes for each.
	var deletes []delta.Record
	for i := range 1450 {
		deletes = append(deletes, gone(fmt.Sprintf("n/p%d", i)))
	}
	w.put(t, deletes...)
	r.status(t, "held", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return c.GetSynced() })
	w.caughtUp(t, r)
	if c := r.status(t, "held", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return c.GetSynced() }); c.GetObjects() != 50 || c.GetLastError() != "" {
		t.Errorf("status %v, want 50 objects and no error", c)
	}
}

// unseen is a log whose end is not told while it is away; it is read all the same.
type unseen struct {
	*stream.Conn
	away *atomic.Bool
}

func (u unseen) Tail(ctx context.Context, col delta.Collection) (stream.Tail, error) {
	if u.away.Load() {
		return stream.Tail{}, stream.ErrUnavailable
	}
	return u.Conn.Tail(ctx, col)
}

func TestACollectionThatGrewUnseenIsHeldAgainOnceItIsSmall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 50, 2000)...)
	log := unseen{w.connect(t), new(atomic.Bool)}
	r := w.indexOn(t, log, func(c *indexer.Config) { c.Tier, c.MemoryBudget = indexer.TierRaw, 2<<20 }, io.Discard)
	w.caughtUp(t, r)
	log.away.Store(true) // or slow to answer, while the log grows
	for i := 50; i < 1500; i += 50 {
		w.put(t, many(i, 50, 2000)...)
	}
	r.status(t, "refused", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return strings.Contains(c.GetLastError(), "memory budget") })
	var deletes []delta.Record
	for i := range 1300 {
		deletes = append(deletes, gone(fmt.Sprintf("n/p%d", i)))
	}
	w.put(t, deletes...)
	log.away.Store(false)
	if c := r.status(t, "held", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return c.GetSynced() && c.GetObjects() == 200 }); c.GetLastError() != "" {
		t.Errorf("status %v, want no error", c)
	}
}

// halting is a log whose first replay is handed over in two parts, with a pause between them.
type halting struct {
	*stream.Conn
	first   int           // payload bytes of the first part
	halted  chan struct{} // closed when that was handed over
	resume  chan struct{}
	tails   atomic.Int32 // how often the log's end was asked for
	replays atomic.Int32
}

func (l *halting) Tail(ctx context.Context, col delta.Collection) (stream.Tail, error) {
	l.tails.Add(1)
	return l.Conn.Tail(ctx, col)
}

func (l *halting) Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error {
	if l.replays.Add(1) > 1 {
		return l.Conn.Read(ctx, col, cfg, h)
	}
	var all delta.Batch
	return l.Conn.Read(ctx, col, cfg, func(ctx context.Context, b delta.Batch) error {
		if all.Replayed {
			return h(ctx, b)
		}
		b.Records, b.Reset = slices.Concat(all.Records, b.Records), b.Reset || all.Reset
		if all = b; !all.Replayed {
			return nil
		}
		records := all.Records
		part, rest := all, all
		n, size := 0, 0
		for ; n < len(records) && size < l.first; n++ {
			size += len(records[n].Payload)
		}
		part.Records, part.Replayed, part.Next = records[:n], false, records[n-1].Sequence+1
		rest.Records, rest.Reset = records[n:], false
		if err := h(ctx, part); err != nil {
			return err
		}
		close(l.halted)
		select {
		case <-l.resume:
		case <-ctx.Done():
			return ctx.Err()
		}
		return h(ctx, rest)
	})
}

// The bytes read of a log are compared with its size; after that they do not change.
func TestACollectionIsTriedAgainThoughItsLogHadBecomeSmallerBeforeItWasRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 1500, 2000)...)
	// The last buffer of the first part is the largest there is, and hardly used.
	log := &halting{Conn: w.connect(t), first: 1060 << 10, halted: make(chan struct{}), resume: make(chan struct{})}
	r := w.indexOn(t, log, func(c *indexer.Config) { c.Tier, c.MemoryBudget = indexer.TierRaw, 2<<20 }, io.Discard)
	<-log.halted
	var deletes []delta.Record
	for i := range 1300 {
		deletes = append(deletes, gone(fmt.Sprintf("n/p%d", i)))
	}
	w.put(t, deletes...)
	asked := log.tails.Load()
	eventually(t, func() string { // what the second answers has been taken in when the third is asked
		if log.tails.Load() < asked+3 {
			return "the log's end is not known yet"
		}
		return ""
	})
	close(log.resume)
	r.status(t, "held", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return c.GetSynced() && c.GetObjects() == 200 })
	if log.replays.Load() < 2 {
		t.Error("it was not refused, so this shows nothing")
	}
}

func TestACollectionWhoseFirstBatchDoesNotFitIsNotTriedAgainWithoutRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 100, 2000)...)
	r := w.index(t, func(c *indexer.Config) { c.Tier, c.MemoryBudget = indexer.TierRaw, 30<<10 })
	r.status(t, "refused", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return strings.Contains(c.GetLastError(), "memory budget") })
	refusals := func() float64 {
		families, err := r.tel.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "deltaplane_indexer_memory_refusals_total" {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return 0
	}
	before := refusals()
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); {
		if _, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "n/p1"}); err == nil {
			t.Fatal("it is served")
		}
	}
	if n := refusals(); before < 1 || n > before+6 { // every 20 ms, then half as often each time
		t.Errorf("refused %v times, before %v", n, before)
	}
}

func TestErrorsRepeatOnlyTheBeginningOfWhatIsLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: strings.Repeat("x", 1<<19), Key: "n/p1"})
	wantStatus(t, "get", err, codes.NotFound, "COLLECTION_NOT_FOUND", "")
	if n := len(err.Error()) + len(rpc.Info(err).GetMetadata()["collection"]); n > 8<<10 {
		t.Errorf("the error takes %d bytes", n)
	}
}

func TestTheAutomaticTierTurnsCompactBeforeTheBudgetIsPassed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 100, 2000)...)
	// What changed last is kept for watchers as it came.
	r := w.index(t, func(c *indexer.Config) { c.MemoryBudget, c.RingChanges = 6<<20, 64 })
	w.caughtUp(t, r)
	if c := r.status(t, "raw", "dev/pods.v1", func(*indexv1.CollectionStatus) bool { return true }); c.GetTier() != indexv1.Tier_TIER_RAW {
		t.Errorf("tier %v with room to spare, want raw", c.GetTier())
	}
	for i := 100; i < 4000; i += 100 { // 8 MB as they are served
		w.put(t, many(i, 100, 2000)...)
	}
	w.caughtUp(t, r)
	c := r.status(t, "compact", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return c.GetTier() == indexv1.Tier_TIER_COMPACT })
	if c.GetObjects() != 4000 || c.GetMemoryBytes() > 6<<20 || c.GetBytes() < 6<<20 {
		t.Errorf("status %v, want all objects within the budget", c)
	}
}

func TestRecordsThatNoReflectorWroteAreFaultsOfTheirKeys(t *testing.T) {
	t.Parallel()
	n := embeddedtest.NATS(t)
	w := &world{dial: func() (*stream.Conn, error) {
		return stream.Connect(t.Context(), stream.Config{Options: []nats.Option{n.InProcess()}, TombstoneTTL: time.Minute})
	}}
	w.conn = w.connect(t)
	w.start(t, pod("n/checksum", options{}), pod("n/schema", options{}), pod("n/key", options{}), pod("n/header", options{}), pod("n/well", options{}))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	nc, err := nats.Connect("", n.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	for key, damage := range map[string]func(h nats.Header, body []byte){
		"n/checksum": func(_ nats.Header, body []byte) { body[len(body)-3] ^= 1 },
		"n/schema":   func(h nats.Header, _ []byte) { h.Set(delta.HeaderVersion, "nine") },
		"n/key":      func(h nats.Header, _ []byte) { h.Set(delta.HeaderKey, "n/another") },
		"n/header":   func(h nats.Header, _ []byte) { h.Set(delta.HeaderRV, "minus one") },
	} {
		rec := w.stamp([]delta.Record{pod(key, options{node: "n2"})})[0]
		rec.Collection, rec.Epoch, rec.Term, rec.PublishedAt = pods, w.w.Epoch(), w.w.Term(), time.Now()
		msg := &nats.Msg{Subject: rec.Subject(), Header: rec.Header(), Data: bytes.Clone(rec.Payload)}
		damage(msg.Header, msg.Data)
		if reply, err := nc.RequestMsg(msg, 10*time.Second); err != nil || bytes.Contains(reply.Data, []byte(`"error"`)) {
			t.Fatalf("publish %s: %v %s", key, err, reply.Data)
		}
	}
	c := r.status(t, "faults", "dev/pods.v1", func(c *indexv1.CollectionStatus) bool { return c.GetQuarantined() == 4 })
	if c.GetObjects() != 5 || !c.GetSynced() {
		t.Errorf("status %v", c)
	}
	for key, want := range map[string]string{"n/checksum": "checksum", "n/schema": "Dp-Version", "n/key": "Dp-Key", "n/header": "Dp-Rv"} {
		_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: key})
		wantStatus(t, key, err, codes.DataLoss, "KEY_QUARANTINED", "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to name %s", key, err, want)
		}
	}
	if got := metric(t, r, "deltaplane_indexer_quarantined_keys"); got != 4 {
		t.Errorf("the metric counts %v keys, want 4", got)
	}
	// The others go on, and a record that can be read repairs its key.
	w.w = w.lead(t, pods, false) // a writer does not go on where another one has written
	w.put(t, pod("n/well", options{node: "n3"}), pod("n/checksum", options{node: "n3"}))
	w.caughtUp(t, r)
	for _, key := range []string{"n/well", "n/checksum"} {
		resp, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: key})
		if err != nil || !strings.Contains(string(resp.GetObject().GetPayload()), `"n3"`) {
			t.Errorf("%s = %v, %v, want what was written last", key, resp, err)
		}
	}
	if got := metric(t, r, "deltaplane_indexer_quarantined_keys"); got != 3 {
		t.Errorf("after a repair the metric counts %v keys, want 3", got)
	}
}
