package reflector

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// A log that stands still again while it is given the list that was asked for: what finds no room
// then needs another one.
func TestChangesThatOverflowBehindAListGetAListOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := &reflection{relist: make(chan struct{}, 1)}
	p := &publisher{r: r, wake: make(chan struct{}, 1), stage: delta.NewStage(1<<10, "")}
	r.cfg.StageBytes = 1 << 10
	s := newSource(r, p, delta.NewShadow(0), 1, "", "")
	payload := []byte(strings.Repeat("x", 1<<10))
	overflow := func() {
		for i := range 100 {
			p.add(func(st *delta.Stage) {
				st.Offer(delta.Record{Kind: delta.KindDelta, Key: delta.Key(rune('a' + i)), Payload: payload})
			})
		}
	}
	drained := func() bool {
		for len(p.stage.Pop(popRecords, popBytes)) > 0 {
		}
		p.repair()
		select {
		case <-r.relist:
			return true
		default:
			return false
		}
	}
	s.asks = newDeletionResolver(t.Context(), r, p, "")
	defer s.asks.close()
	overflow()
	if !drained() {
		t.Fatal("no list is asked for")
	}
	s.finish(t.Context(), "10")
	overflow()
	if !drained() {
		t.Error("no list is asked for, of what was lost behind the first")
	}
	if s.finish(t.Context(), "20"); drained() || p.stage.Watermark() != "20" {
		t.Errorf("another list, or the watermark %s, after the loss was made up for", p.stage.Watermark())
	}
}

// Several lists may wait for a slow log. What the first left open is not settled by the second
// before the log has that one.
func TestAListIsDueUntilACompleteOneIsInTheLog(t *testing.T) {
	t.Parallel()
	p := &publisher{lists: []bool{true, false, true, false}}
	for i, want := range []struct {
		synced        int
		complete, due bool
	}{{1, false, true}, {1, true, true}, {2, true, false}} {
		if complete, due := p.told(want.synced); complete != want.complete || due != want.due {
			t.Errorf("%d: told(%d) = %v, %v, want %v, %v", i, want.synced, complete, due, want.complete, want.due)
		}
	}
}

// A record that is in no hurry may be on its way while changes wait behind it.
func TestTheLagIsThatOfTheOldestChangeThatWaits(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := &publisher{r: &reflection{}, wake: make(chan struct{}, 1), stage: delta.NewStage(1<<10, "")}
	since := func() time.Duration { v := p.r.state.get(); return v.behind(began) }
	p.sending = 1
	for i, age := range []time.Duration{time.Minute, time.Second} {
		p.add(func(st *delta.Stage) {
			st.Push(delta.Record{Kind: delta.KindDelta, Key: delta.Key(rune('a' + i)), ObservedAt: began.Add(-age)})
		})
	}
	if got := since(); got != time.Minute {
		t.Errorf("behind a liveness record: %v, want 1m0s", got)
	}
	p.stage.Pop(1, popBytes)
	p.sent = began.Add(-time.Minute)
	p.count()
	if got := since(); got != time.Minute {
		t.Errorf("on its way: %v, want 1m0s", got)
	}
	p.sending, p.sent = 0, time.Time{}
	p.count()
	if got := since(); got != time.Second {
		t.Errorf("after the first: %v, want 1s", got)
	}
	p.stage.Pop(1, popBytes)
	p.count()
	if got := since(); got != 0 {
		t.Errorf("with nothing waiting: %v, want 0", got)
	}
}

// What waits hides neither that keys were taken from the log nor, being new, counts as taken.
func TestKeysTakenFromTheLogAreNoticedWhileChangesWait(t *testing.T) {
	t.Parallel()
	p, js := onLog(t, Config{})
	change := func(step int8, keys ...string) {
		p.add(func(st *delta.Stage) {
			for _, key := range keys {
				st.Push(delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: delta.NewKey("default", key), RV: "5", Payload: []byte("{}"), Step: step})
			}
		})
	}
	change(1, "a", "b", "c")
	if _, err := p.drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	change(0, "a", "b", "a", "b")
	change(1, "d", "e")
	if err := p.check(t.Context()); err != nil {
		t.Errorf("check() of a whole log = %v", err)
	}
	s, err := js.Stream(t.Context(), p.r.col.StreamName())
	if err == nil {
		err = s.Purge(t.Context(), jetstream.WithPurgeSubject(p.r.col.Subject(delta.NewKey("default", "c"))))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.check(t.Context()); !errors.Is(err, stream.ErrLogLost) {
		t.Errorf("check() = %v, want %v", err, stream.ErrLogLost)
	}
}

// The first of a batch has waited the longest: the lag is its, and the histogram has each.
func TestTheLagOfABatchIsThatOfItsOldestChange(t *testing.T) {
	t.Parallel()
	p, _ := onLog(t, Config{})
	p.add(func(st *delta.Stage) {
		for i, age := range []time.Duration{time.Hour, 0} {
			st.Push(delta.Record{
				Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key("default/" + string(rune('a'+i))), RV: "5", Payload: []byte("{}"),
				ObservedAt: time.Now().Add(-age),
			})
		}
	})
	if _, err := p.drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lag := p.r.state.get().lag; lag < time.Hour {
		t.Errorf("the lag is %v, want at least an hour", lag)
	}
	var m dto.Metric
	if err := p.r.metrics.publishSeconds.WithLabelValues(p.r.label()).(prometheus.Histogram).Write(&m); err != nil {
		t.Fatal(err)
	}
	if h := m.GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() < 3600 {
		t.Errorf("%d changes in %v s, want both of them", h.GetSampleCount(), h.GetSampleSum())
	}
}

// What is no change begins no gathering: the change that follows is published at once.
func TestADrainCountsChangesAlone(t *testing.T) {
	t.Parallel()
	p, _ := onLog(t, Config{})
	for i, step := range []struct {
		stage func(*delta.Stage)
		want  int
	}{
		{func(st *delta.Stage) { st.Advance("4") }, 0}, // a bookmark
		{func(st *delta.Stage) {
			st.Push(delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: "default/a", RV: "5", Payload: []byte("{}")})
			st.Control(delta.Record{Kind: delta.KindSynced, RV: "5"})
			p.lists = append(p.lists, false)
		}, 1},
	} {
		p.add(step.stage)
		if n, err := p.drain(t.Context()); n != step.want || err != nil {
			t.Errorf("step %d: drain() = %d, %v, want %d", i, n, err, step.want)
		}
		if n := p.r.state.get().pending; n != 0 {
			t.Errorf("step %d: %d records wait", i, n)
		}
	}
}

// Readers count as told what is at or below the watermark: it stays before what is gathered.
func TestALivenessRecordVouchesForNothingThatWaits(t *testing.T) {
	t.Parallel()
	p, js := onLog(t, Config{})
	p.watching(true)
	changes(10, 0)(p)
	if _, err := p.drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes(10, 0)(p)
	if err := p.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), p.r.col.StreamName())
	if err != nil {
		t.Fatal(err)
	}
	msg, err := s.GetLastMsgForSubject(t.Context(), p.r.col.ControlSubject(delta.KindLiveness))
	if err != nil {
		t.Fatal(err)
	}
	if w := msg.Header.Get(delta.HeaderWatermark); w != "10" {
		t.Errorf("the watermark is %q, want 10", w)
	}
}

// meanwhile does something while records are on their way: when their trace begins.
type meanwhile struct {
	noop.Tracer

	do func()
}

func (m meanwhile) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	m.do()
	return m.Tracer.Start(ctx, name, options...)
}

// A change that comes while one is on its way follows closely, however fast the log is.
func TestAChangeThatComesDuringADrainIsGathered(t *testing.T) {
	t.Parallel()
	for gather, want := range map[time.Duration]int{0: 2, time.Second: 1} {
		p, _ := onLog(t, Config{Gather: gather})
		p.r.tracer = tracer{Tracer: meanwhile{do: sync.OnceFunc(func() { changes(1, 0)(p) })}, ratio: tracing.RatioOf(1)}
		changes(1, 0)(p)
		n, err := p.drain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n != want || p.waiting() != 2-want {
			t.Errorf("gathering for %v, %d changes are published and %d wait; want %d and %d", gather, n, p.waiting(), want, 2-want)
		}
	}
}

// onLog is a publisher to a log of its own.
func onLog(t *testing.T, cfg Config) (*publisher, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(embeddedtest.NATS(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nc.ConnectedUrl()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	r := &reflection{
		cfg: cfg.withDefaults(), log: conn, metrics: m, relist: make(chan struct{}, 1),
		col: delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"},
	}
	lease, err := conn.Lease(t.Context(), stream.LeaseConfig{Name: r.col.String(), Holder: "test", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.WithoutCancel(t.Context())) })
	w, err := conn.Writer(t.Context(), r.col, stream.WriterConfig{Term: lease.Term})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return newPublisher(r, w, lease, "", &handoverState{shadow: delta.NewShadow(time.Hour)}), js
}
