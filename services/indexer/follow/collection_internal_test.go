package follow

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// These are shorter here.
var (
	now            = indexertest.Now
	record, synced = indexertest.Record, indexertest.Synced
)

// noObserver observes nothing.
type noObserver struct{}

func (noObserver) Applied(int) {}
func (noObserver) Wake()       {}

func newTestCollection(t *testing.T, spans *tracetest.SpanRecorder) *Collection {
	t.Helper()
	return newTestCollections(t, spans, Config{}).Know(indexertest.Pods)
}

// newTestCollections are none yet, of a log that nobody reads.
func newTestCollections(t *testing.T, spans *tracetest.SpanRecorder, cfg Config) *Collections {
	t.Helper()
	provider := trace.NewTracerProvider()
	if spans != nil {
		provider = trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	}
	cfg.Now = func() time.Time { return now }
	cfg.DiscoverEvery, cfg.RingChanges, cfg.RingBytes = time.Second, 8192, 64<<20
	tel := &telemetry.Telemetry{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Tracer: provider}
	s, err := New(cfg, indexertest.DeadLog{TTL: time.Hour}, tel)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(nil, func(*Collection) Observer { return noObserver{} }); err != nil {
		t.Fatal(err)
	}
	return s
}

// mustApply applies a batch as the reader of the log does.
func mustApply(t *testing.T, c *Collection, b delta.Batch) {
	t.Helper()
	c.apply(t.Context(), c.take(b))
}

func TestAFreshReplicaResumesOnlyWhereNoTombstoneCanHaveExpired(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ages []time.Duration // of records 1..n
		from uint64          // least sequence that can be resumed
	}{
		"all young":            {[]time.Duration{time.Minute, time.Second}, 1},
		"old, then young":      {[]time.Duration{3 * time.Hour, 2 * time.Hour, time.Minute, time.Second}, 2},
		"all old":              {[]time.Duration{3 * time.Hour, 2 * time.Hour}, 3},
		"just past half a TTL": {[]time.Duration{31 * time.Minute, 29 * time.Minute}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTestCollection(t, nil)
			var records []delta.Record
			for i, age := range row.ages {
				records = append(records, record(uint64(i+1), age))
			}
			end := uint64(len(records) + 1)
			mustApply(t, c, delta.Batch{Reset: true, Records: append(records, synced(end)), Replayed: true, Next: end + 1})
			for seq := range end {
				_, _, ok := c.store.Snapshot().Since(seq)
				if want := seq >= row.from; ok != want {
					t.Errorf("Since(%d) = %v, want %v", seq, ok, want)
				}
			}
		})
	}
}

func TestTheRevisionIsFrozenAfterAHoleUntilTheEndIsApplied(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	mustApply(t, c, delta.Batch{Reset: true, Records: []delta.Record{record(1, 0), synced(2)}, Replayed: true, Next: 3})
	mustApply(t, c, delta.Batch{Records: []delta.Record{record(9, 0)}, End: 12, Next: 10})
	if got := c.store.Snapshot().State().Revision.RV; got != "2" {
		t.Errorf("revision %s after a hole, want 2", got)
	}
	mustApply(t, c, delta.Batch{Records: []delta.Record{record(12, 0)}, Next: 13})
	if got := c.store.Snapshot().State().Revision.RV; got != "12" {
		t.Errorf("revision %s after the end was applied, want 12", got)
	}
}

func TestALeaderThatOnlyTakesOverDoesNotMakeACollectionFresh(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	old := synced(1)
	old.PublishedAt = now.Add(-time.Minute)
	mustApply(t, c, delta.Batch{Reset: true, Replayed: true, Records: []delta.Record{old}, Next: 2})
	term := delta.Record{Kind: delta.KindTerm, Epoch: 1, Term: 2, Start: 3, Sequence: 3, PublishedAt: now}
	fence := delta.Record{Kind: delta.KindFence, Epoch: 1, Term: 2, Sequence: 2, PublishedAt: now}
	mustApply(t, c, delta.Batch{Records: []delta.Record{fence, term}, Next: 4})
	if st := c.store.Snapshot().State(); !Stale(st, now, 15*time.Second) {
		t.Errorf("fresh at %v: a reflector that leads and cannot reach the source vouches for nothing", st.Fresh)
	}
	live := delta.Record{Kind: delta.KindLiveness, Epoch: 1, Term: 2, Sequence: 4, PublishedAt: now}
	mustApply(t, c, delta.Batch{Records: []delta.Record{live}, Next: 5})
	if Stale(c.store.Snapshot().State(), now, 15*time.Second) {
		t.Error("a liveness record does not make the collection fresh")
	}
}

func TestARecordOfUnknownSchemaPutsItsKeyInDoubt(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	mustApply(t, c, delta.Batch{Reset: true, Records: []delta.Record{record(1, 0), synced(2)}, Replayed: true, Next: 3})
	mustApply(t, c, delta.Batch{Unreadable: []delta.Unreadable{{Sequence: 3, Key: "n/p1", Err: delta.ErrHeader}}, Next: 4})
	o := c.store.Snapshot().Get("n/p1")
	if !o.Faulty() || o.Size() != 0 || c.store.Snapshot().State().Position.Sequence != 3 {
		t.Errorf("object = %+v", o)
	}
	if text := *c.lastErr.Load(); !strings.Contains(text, "record 3") {
		t.Errorf("last error = %q", text)
	}
}

func TestEachSampledDeltaOfABatchHasASpanInItsTraceAndAnExemplar(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	c := newTestCollection(t, spans)
	mustApply(t, c, delta.Batch{Reset: true, Records: []delta.Record{synced(1)}, Replayed: true, Next: 2})
	records := []delta.Record{record(2, 0), record(3, 0), record(4, 0)}
	records[0].Trace = "00-11111111111111111111111111111111-2222222222222222-01"
	records[1].Trace = "00-33333333333333333333333333333333-4444444444444444-00"
	records[2].Trace = "00-55555555555555555555555555555555-6666666666666666-01"
	records[2].StoredAt = now
	mustApply(t, c, delta.Batch{Records: records, Next: 5})
	ended := spans.Ended()
	if len(ended) != 2 {
		t.Fatalf("%d spans, want those of the two sampled deltas", len(ended))
	}
	if got := ended[1]; got.SpanContext().TraceID().String() != strings.Repeat("5", 32) || got.Parent().SpanID().String() != strings.Repeat("6", 16) {
		t.Errorf("the second span is of trace %s, below %s", got.SpanContext().TraceID(), got.Parent().SpanID())
	}
	var out dto.Metric
	if err := c.metrics.visible.Write(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), strings.Repeat("5", 32)) {
		t.Errorf("no exemplar: %v", &out)
	}
}

func TestAPayloadThatNestsWithoutEndIsRefusedBeforeItIsRead(t *testing.T) {
	t.Parallel()
	nest := func(n int) []byte {
		return []byte(`{"metadata":{"name":"a"},"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}")
	}
	x := extract.New(extract.NewPlan(nil, nil))
	for _, hash := range []bool{true, false} {
		fault := func(payload []byte) string {
			r := delta.Record{Key: "a", Payload: payload}
			if hash {
				r.Hash = delta.Hash(payload)
			}
			return x.Object(t.Context(), &r).Fault()
		}
		if got := fault(nest(8 << 20)); !strings.Contains(got, "nests deeper") {
			t.Errorf("8 million levels: %q", got)
		}
		if got := fault([]byte(`{"a":` + strings.Repeat("[", 8<<20))); !strings.Contains(got, "nests deeper") {
			t.Errorf("8 million levels never closed: %q", got)
		}
		if got := fault(nest(delta.MaxDepth - 1)); got != "" {
			t.Errorf("the deepest allowed: %q", got)
		}
	}
	wide := []byte(`{"metadata":{"name":"a\"["},"x":[` + strings.Repeat(`{},`, 2*delta.MaxDepth) + `"` + strings.Repeat("[", 2*delta.MaxDepth) + `"]}`)
	if _, err := x.Example(t.Context(), wide); err != nil {
		t.Errorf("many brackets side by side: %v", err)
	}
}

func TestTombstonesThatExpireDuringASlowReplayAreNotCountedOn(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		took time.Duration
		from uint64 // least sequence that can be resumed
	}{
		"half a TTL":     {30 * time.Minute, 1},
		"more than that": {31 * time.Minute, 3},
		"nearly a TTL":   {59 * time.Minute, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTestCollection(t, nil)
			mustApply(t, c, delta.Batch{Reset: true})
			mustApply(t, c, delta.Batch{Records: []delta.Record{record(1, 29*time.Minute), record(2, time.Minute)}, Next: 3})
			c.now = func() time.Time { return now.Add(row.took) }
			mustApply(t, c, delta.Batch{Records: []delta.Record{synced(3)}, Replayed: true, Next: 4})
			for seq := range uint64(4) {
				_, _, ok := c.store.Snapshot().Since(seq)
				if want := seq >= row.from; ok != want {
					t.Errorf("Since(%d) = %v, want %v", seq, ok, want)
				}
			}
		})
	}
}
