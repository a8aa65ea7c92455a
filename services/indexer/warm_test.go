package indexer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
)

const podsFile = "dev%2Fpods.v1.checkpoint"

func keeping(dir string) func(*indexer.Config) {
	return func(c *indexer.Config) { c.DataDir, c.CheckpointEvery = dir, 20*time.Millisecond }
}

// killed returns what a process that is killed now leaves behind.
func killed(t testing.TB, dir string) string {
	t.Helper()
	left := t.TempDir()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if os.IsNotExist(err) { // it was renamed a moment ago
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(left, e.Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return left
}

// state is all there is to see of the collection.
func (r *replica) state(t testing.TB) []string {
	t.Helper()
	resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", PageSize: 5000})
	if err != nil {
		t.Fatal(err)
	}
	out := []string{resp.GetRevision().String()}
	for _, o := range resp.GetObjects() {
		out = append(out, o.GetKey()+" "+o.GetUid()+" "+o.GetResourceVersion()+" "+string(o.GetPayload()))
	}
	return out
}

func (r *replica) warm(t testing.TB) bool {
	t.Helper()
	resp, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
	if err != nil || len(resp.GetCollections()) != 1 {
		t.Fatalf("ListCollections = %v, %v", resp, err)
	}
	return resp.GetCollections()[0].GetWarmStart()
}

// counter reads a replica's counter or gauge, summed over labels with one of values, or all.
func (r *replica) counter(t testing.TB, name string, values ...string) (sum float64) {
	t.Helper()
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			named := len(values) == 0
			for _, l := range m.GetLabel() {
				named = named || slices.Contains(values, l.GetValue())
			}
			if f.GetName() == name && named {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestARestartReadsTheCheckpointAndOnlyTheRestOfTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var records []delta.Record
	for i := range 300 {
		records = append(records, pod(fmt.Sprintf("n%d/p%d", i%3, i), options{node: fmt.Sprint("n", i%7), labels: "app=web", owner: "job-1"}))
	}
	broken := pod("x/broken", options{})
	broken.Payload = []byte(`{"metadata":`)
	w.start(t, append(records, broken)...)
	dir := t.TempDir()
	first := w.index(t, keeping(dir))
	w.caughtUp(t, first)
	if first.warm(t) || first.counter(t, "deltaplane_indexer_warm_starts_total", "none") != 1 {
		t.Error("a first start was warm")
	}
	position, err := first.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first.stop()
	w.put(t, pod("n0/p0", options{node: "moved"}), gone("n1/p1"), pod("n0/new", options{}))
	cold, warm := w.index(t, nil), w.index(t, keeping(dir))
	w.caughtUp(t, cold)
	w.caughtUp(t, warm)
	if got, want := warm.state(t), cold.state(t); !slices.Equal(got, want) || len(got) != 302 {
		t.Errorf("%d objects after a warm start, %d after a cold one, and they differ", len(got)-1, len(want)-1)
	}
	if !warm.warm(t) || warm.counter(t, "deltaplane_indexer_warm_starts_total", "used") != 1 {
		t.Error("the restart was not warm")
	}
	if got := warm.counter(t, "deltaplane_indexer_deltas_total"); got != 3 {
		t.Errorf("%v records were read again, want the 3 since", got)
	}
	for _, q := range []*indexv1.ByIndexRequest{
		{Collection: "pods", Index: "node", Values: []string{"n1", "moved"}},
		{Collection: "pods", Index: "owner", Values: []string{"job-1"}},
		{Collection: "pods", Index: "label", Values: []string{"app=web"}},
		{Collection: "pods", Index: "namespace", Values: []string{"n1"}},
	} {
		a, errA := warm.ByIndex(t.Context(), q)
		b, errB := cold.ByIndex(t.Context(), q)
		if errA != nil || errB != nil || !slices.Equal(keysOf(a.GetObjects()), keysOf(b.GetObjects())) || len(a.GetObjects()) == 0 {
			t.Errorf("%s: %d and %d hits, %v, %v", q.GetIndex(), len(a.GetObjects()), len(b.GetObjects()), errA, errB)
		}
	}
	_, err = warm.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "x/broken"})
	wantStatus(t, "a broken key", err, codes.DataLoss, "KEY_QUARANTINED", "")

	// A watch from before the restart goes on without a gap: deletes were kept too.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watch, err := warm.Watch(ctx, &indexv1.WatchRequest{Collection: "pods", Resume: position.GetCollections()[0].GetPosition()})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) < 3 {
		resp, err := watch.Recv()
		if err != nil || resp.GetGap() != nil {
			t.Fatalf("after %q: %v, %v", seen, resp, err)
		}
		for _, e := range resp.GetEvents().GetEvents() {
			seen = append(seen, e.GetObject().GetKey())
		}
	}
	if !slices.Equal(seen, []string{"n0/p0", "n1/p1", "n0/new"}) {
		t.Errorf("a resumed watch saw %q", seen)
	}
}

func TestAProcessThatIsKilledLeavesAUsableFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	dir := t.TempDir()
	first := w.index(t, keeping(dir))
	w.caughtUp(t, first)
	eventually(t, func() string {
		if first.counter(t, "deltaplane_indexer_checkpoints_total", "saved") == 0 {
			return "no checkpoint is written while it runs"
		}
		return ""
	})
	left := killed(t, dir)
	w.put(t, pod("a/one", options{node: "later"}), gone("b/one"))
	w.caughtUp(t, first)
	again := w.index(t, keeping(left))
	w.caughtUp(t, again)
	if !again.warm(t) {
		t.Error("the restart was not warm")
	}
	if got, want := again.state(t), first.state(t); !slices.Equal(got, want) {
		t.Errorf("after the restart\n%q, want\n%q", got, want)
	}
}

// gated is a log that gives nothing until it is opened.
type gated struct {
	*stream.Conn
	open chan struct{}
}

func (g gated) Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error {
	select {
	case <-g.open:
		return g.Conn.Read(ctx, col, cfg, h)
	case <-ctx.Done():
		return nil
	}
}

func TestARestoredCheckpointIsNotServedBeforeTheLogAcceptsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, w *world)
		warm      bool
		want      []string
	}{
		"the same log": {func(t *testing.T, w *world) { w.put(t, gone("a/one")) }, true, []string{"a/two", "b/one", "b/two"}},
		"a log recreated": {func(t *testing.T, w *world) {
			if err := w.conn.Remove(t.Context(), pods); err != nil {
				t.Fatal(err)
			}
			w.w = w.lead(t, pods, true)
			w.put(t, pod("c/new", options{}))
			w.sync(t)
		}, false, []string{"c/new"}},
		"a new epoch": {func(t *testing.T, w *world) {
			w.w = w.lead(t, pods, true)
			w.put(t, pod("a/one", options{}), pod("c/new", options{}))
			w.sync(t)
		}, false, []string{"a/one", "a/two", "b/one", "b/two", "c/new"}}, // a reflector would have deleted two of them
		"a new leader": {func(t *testing.T, w *world) {
			w.w = w.lead(t, pods, false)
			w.put(t, pod("c/new", options{}))
			w.sync(t)
		}, true, []string{"a/one", "a/two", "b/one", "b/two", "c/new"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start(t, fleet()...)
			dir := t.TempDir()
			first := w.index(t, keeping(dir))
			w.caughtUp(t, first)
			first.stop()
			c.meanwhile(t, w)
			gate := gated{Conn: w.connect(t), open: make(chan struct{})}
			r := w.indexOn(t, gate, keeping(dir), io.Discard)
			eventually(t, func() string {
				resp, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
				if err != nil || len(resp.GetCollections()) != 1 || resp.GetCollections()[0].GetObjects() != 4 {
					return fmt.Sprint("the file is not read: ", resp, err)
				}
				return ""
			})
			for _, consistency := range []*indexv1.Consistency{nil, at(0, 1)} {
				_, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", Consistency: consistency})
				wantStatus(t, "before the log was asked", err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
			}
			close(gate.open)
			eventually(t, func() string { // whenever it answers, it answers with all there is
				resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", View: indexv1.View_VIEW_KEYS})
				if err != nil {
					return err.Error()
				}
				wantKeys(t, "the first answer", resp.GetObjects(), c.want...)
				return ""
			})
			w.caughtUp(t, r)
			if got := r.warm(t); got != c.warm {
				t.Errorf("warm = %v, want %v", got, c.warm)
			}
			if refused := r.counter(t, "deltaplane_indexer_warm_starts_total", "refused"); (refused == 0) != c.warm {
				t.Errorf("%v refused", refused)
			}
		})
	}
}

// stepped is a log that gives one record at a time, and waits behind each but the last.
type stepped struct {
	*stream.Conn
	applied chan struct{}
	next    chan struct{}
}

func (s stepped) Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error {
	cfg.MaxBatch = 1
	return s.Conn.Read(ctx, col, cfg, func(ctx context.Context, b delta.Batch) error {
		err := h(ctx, b)
		if b.Replayed || len(b.Records) == 0 {
			return err
		}
		select {
		case s.applied <- struct{}{}:
			<-s.next
		case <-ctx.Done():
		}
		return err
	})
}

func TestARestoredCollectionIsNotServedHalfCaughtUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	dir := t.TempDir()
	first := w.index(t, keeping(dir))
	w.caughtUp(t, first)
	first.stop()
	for range 20 { // leaves a hole behind the position of the file
		w.put(t, pod("a/hot", options{}))
	}
	w.put(t, pod("c/new", options{}), gone("a/one"))
	log := stepped{Conn: w.connect(t), applied: make(chan struct{}), next: make(chan struct{})}
	r := w.indexOn(t, log, keeping(dir), io.Discard)
	for range 2 {
		<-log.applied
		_, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods"})
		wantStatus(t, "half caught up", err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
		log.next <- struct{}{}
	}
	w.caughtUp(t, r)
	if got := list(t, r); !slices.Equal(got, []string{"a/hot", "a/two", "b/one", "b/two", "c/new"}) || !r.warm(t) {
		t.Errorf("caught up = %q, warm %v", got, r.warm(t))
	}
}

func TestFilesThatCannotBeUsedAreNamedAndTheLogIsReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	source := t.TempDir()
	first := w.index(t, keeping(source))
	w.caughtUp(t, first)
	want := first.state(t)
	first.stop()
	whole, err := os.ReadFile(filepath.Join(source, podsFile))
	if err != nil {
		t.Fatal(err)
	}
	same := func(*checkpoint.Header) {}
	for reason, c := range map[string]struct {
		change func(*checkpoint.Header)
		damage func([]byte) []byte
	}{
		"damaged": {same, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		"cut":     {same, func(b []byte) []byte { return b[:len(b)-3] }},
		"format":  {same, func(b []byte) []byte { b[8]++; return b }},
		"older":   {same, func(b []byte) []byte { b[8]--; return b }},
		"foreign": {change: func(h *checkpoint.Header) { h.Collection = "dev/nodes.v1" }},
		"old":     {change: func(h *checkpoint.Header) { h.Fresh = h.Fresh.Add(-31 * time.Second) }}, // the TTL is a minute
		"failed":  {change: func(h *checkpoint.Header) { h.Mark = delta.Mark{} }},
		"used":    {change: func(h *checkpoint.Header) { h.Facts = "read otherwise" }},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			data := rewrite(t, whole, c.change)
			if c.damage != nil {
				data = c.damage(data)
			}
			if err := os.WriteFile(filepath.Join(dir, podsFile), data, 0o600); err != nil {
				t.Fatal(err)
			}
			switch reason {
			case "cut":
				reason = "damaged"
			case "older":
				reason = "format"
			}
			var logged lockedBuffer
			r := w.indexOn(t, w.connect(t), func(c *indexer.Config) { keeping(dir)(c); c.CheckpointEvery = time.Hour }, &logged)
			w.caughtUp(t, r)
			if got := r.state(t); !slices.Equal(got, want) {
				t.Errorf("state = %q, want %q", got, want)
			}
			if r.counter(t, "deltaplane_indexer_warm_starts_total", reason) != 1 || r.warm(t) != (reason == "used") {
				t.Errorf("not counted as %s", reason)
			}
			if lines := strings.Count(logged.String(), "checkpoint not used"); reason != "used" && (lines != 1 || !strings.Contains(logged.String(), "reason="+reason)) {
				t.Errorf("%d lines name it:\n%s", lines, logged.String())
			}
			byNode, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}})
			if err != nil || len(byNode.GetObjects()) == 0 {
				t.Errorf("by node: %v, %v", byNode, err)
			}
		})
	}
}

// rewrite changes what a file says of itself.
func rewrite(t *testing.T, file []byte, change func(*checkpoint.Header)) []byte {
	t.Helper()
	image, err := checkpoint.Read(bytes.NewReader(file), int64(len(file)), checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Options{})
	for _, o := range image.Objects {
		s.Apply(store.Batch{Ops: []store.Op{{Put: o.WithFields(nil)}}}, time.Now())
	}
	image.Fresh = time.Now() // the test may have waited for its turn
	change(&image.Header)
	var out bytes.Buffer
	if _, err := checkpoint.Write(&out, image.Header, s.Snapshot(), nil); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestADataDirIsOfOneProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	dir := t.TempDir()
	w.caughtUp(t, w.index(t, keeping(dir)))
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "indexer", LogOutput: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	second, err := indexer.New(indexer.Config{Admin: telemetry.AdminConfig{Listen: "off"}, DataDir: dir}, w.connect(t), tel)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, dirlock.ErrTaken) {
		t.Errorf("Run on a folder in use = %v, want ErrTaken", err)
	}
}

// lockedBuffer gathers a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
