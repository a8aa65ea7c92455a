package indexer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

var (
	seeds     = flag.Int("seeds", 24, "histories of the differential test")
	firstSeed = flag.Uint64("seed", 1, "seed of the first history")
)

// A random source writes a log: bursts that leave holes for whoever is behind, recreations, new leaders, new epochs with
// versions that go back, logs that are lost, records that cannot be read. Replicas are stopped and started in the middle of it. Whatever is
// read meanwhile must be a state the source had at or after the revision the answer claims, key by key; pages must
// come from one snapshot; what watches were told must add up; and at the end everything must equal the source.
func TestDifferential(t *testing.T) {
	t.Parallel()
	n := *seeds
	if testing.Short() {
		n = min(n, 4)
	}
	for i := range n {
		seed := *firstSeed + uint64(i)
		t.Run("seed "+strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			differential(t, seed)
		})
	}
}

func differential(t *testing.T, seed uint64) {
	w := newWorld(t)
	src := newSource(t, w, seed)
	src.begin(t)
	places := []*place{
		newPlace(t, w, "raw", func(c *indexer.Config) { c.Tier = indexer.TierRaw }),
		newPlace(t, w, "compact, small ring", func(c *indexer.Config) {
			c.Tier, c.RingChanges, c.RingBytes = indexer.TierCompact, 16, 1<<16
		}),
		newKeeper(t, w, "stopped", func(dir string) string { return dir }),
		newKeeper(t, w, "killed", func(dir string) string { return killed(t, dir) }),
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var readers sync.WaitGroup
	run := func(f func(context.Context) error) {
		readers.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	var folds []*fold
	for i, p := range places {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		run((&pager{p: p, src: src, rng: rng}).run)
		for _, f := range newFolds(p, seed, i) {
			folds = append(folds, f)
			run(f.run)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	for range 60 {
		src.step(t)
		if rng.IntN(8) == 0 {
			places[rng.IntN(len(places))].restart(t)
		}
	}
	src.settle(t)
	for _, p := range places {
		w.caughtUp(t, p.now.Load())
		p.compare(t, src)
	}
	for _, f := range folds {
		f.awaitEqual(t, src)
	}
	stop()
	readers.Wait()
}

// place is where a replica runs; it may be another one each time.
type place struct {
	name   string
	w      *world
	change func(*indexer.Config)
	now    atomic.Pointer[replica]

	dir  string                  // of its checkpoints; none are kept without
	left func(dir string) string // is called before a stop and returns what there will be after it
}

func newPlace(t *testing.T, w *world, name string, change func(*indexer.Config)) *place {
	p := &place{name: name, w: w, change: change}
	p.now.Store(w.index(t, change))
	return p
}

// newKeeper makes a place whose replicas keep checkpoints.
func newKeeper(t *testing.T, w *world, name string, left func(dir string) string) *place {
	p := &place{name: name, w: w, dir: t.TempDir(), left: left}
	p.change = func(c *indexer.Config) { c.DataDir, c.CheckpointEvery = p.dir, 5*time.Millisecond }
	p.now.Store(w.index(t, p.change))
	return p
}

// restart stops the replica and starts another one; what its readers meet is theirs to bear.
func (p *place) restart(t *testing.T) {
	if p.left != nil {
		p.dir = p.left(p.dir)
	}
	p.now.Load().stop()
	p.now.Store(p.w.index(t, p.change))
}

// away reports whether an error says no more than that the replica cannot answer just now.
func away(err error) bool {
	switch rpc.Code(err) {
	case codes.Unavailable, codes.Canceled:
		return true
	case codes.NotFound: // a replica that has just started has not found the log
		return rpc.Reason(err) == "COLLECTION_NOT_FOUND"
	case codes.FailedPrecondition:
		return rpc.Reason(err) == "SNAPSHOT_GONE"
	case codes.DeadlineExceeded:
		return rpc.Reason(err) == "REVISION_NOT_REACHED"
	default:
		return false
	}
}

// pause waits a moment; false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// pager lists, a few objects a page, again and again.
type pager struct {
	p   *place
	src *source
	rng *rand.Rand
}

func (g *pager) run(ctx context.Context) error {
	for ctx.Err() == nil {
		req := &indexv1.ListRequest{Collection: "pods", PageSize: int32(1 + g.rng.IntN(9))}
		var want func(*version) bool
		switch g.rng.IntN(3) {
		case 0:
			req.LabelSelector = "app=a"
			want = func(v *version) bool { return v.app == "a" }
		case 1:
			req.Namespace = "ns-1"
		}
		if err := g.list(ctx, req, want); err != nil && !away(err) {
			return fmt.Errorf("%s: list %v: %w", g.p.name, req, err)
		}
		if !pause(ctx, time.Millisecond) {
			return nil
		}
	}
	return nil
}

// list reads all pages and checks them against the source.
func (g *pager) list(ctx context.Context, req *indexv1.ListRequest, want func(*version) bool) error {
	replica := g.p.now.Load()
	got := map[string]*indexv1.Object{}
	bad := map[string]bool{}
	last := ""
	var first *indexv1.ListResponse
	for {
		resp, err := replica.List(ctx, req)
		if err != nil {
			return err
		}
		if first == nil {
			first = resp
		}
		if r, f := resp.GetRevision(), first.GetRevision(); r.GetEpoch() != f.GetEpoch() || r.GetResourceVersion() != f.GetResourceVersion() {
			return fmt.Errorf("a page is of revision %v, the first of %v", r, f)
		}
		for _, o := range resp.GetObjects() {
			if last != "" && !keyLess(last, o.GetKey()) {
				return fmt.Errorf("%q comes after %q", o.GetKey(), last)
			}
			last = o.GetKey()
			got[last] = o
		}
		for _, key := range resp.GetQuarantinedKeys() {
			bad[key] = true
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
		if !pause(ctx, time.Duration(g.rng.IntN(3))*time.Millisecond) {
			return nil
		}
	}
	rv, err := strconv.Atoi(first.GetRevision().GetResourceVersion())
	if err != nil {
		return err
	}
	return g.src.check(stamp{first.GetRevision().GetEpoch(), rv}, req.GetNamespace(), want, got, bad)
}

func keyLess(a, b string) bool { return a < b } // namespaces of the source have one length

// compare reads everything in every way and wants what the source has.
func (p *place) compare(t *testing.T, src *source) {
	t.Helper()
	r := p.now.Load()
	var errs []error
	check := func(what string, objects []*indexv1.Object, err error, want func(*version) bool) {
		if err == nil {
			err = src.equal(objects, want)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", p.name, what, err))
		}
	}
	all, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", PageSize: 5000})
	check("List", all.GetObjects(), err, nil)
	for _, sel := range []struct {
		text string
		want func(*version) bool
	}{
		{"app=a", func(v *version) bool { return v.app == "a" }},
		{"app!=a", func(v *version) bool { return v.app != "a" }},
		{"app in (a,b)", func(v *version) bool { return v.app == "a" || v.app == "b" }},
		{"app notin (a,b),app", func(v *version) bool { return v.app != "" && v.app != "a" && v.app != "b" }},
		{"!app", func(v *version) bool { return v.app == "" }},
	} {
		got, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", PageSize: 5000, LabelSelector: sel.text})
		check("List "+sel.text, got.GetObjects(), err, sel.want)
		n, err := r.Count(t.Context(), &indexv1.CountRequest{Collection: "pods", LabelSelector: sel.text})
		if err != nil || int(n.GetCount()) != len(got.GetObjects()) {
			errs = append(errs, fmt.Errorf("%s: Count %s = %v, %w, List has %d", p.name, sel.text, n, err, len(got.GetObjects())))
		}
	}
	for i := range nodes {
		node := "n" + strconv.Itoa(i)
		got, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{node}})
		check("ByIndex node "+node, got.GetObjects(), err, func(v *version) bool { return v.node == node })
	}
	for i := range owners {
		owner := "owner-" + strconv.Itoa(i)
		got, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "pods", Index: "owner", Values: []string{owner}})
		check("ByIndex owner "+owner, got.GetObjects(), err, func(v *version) bool { return v.owner == owner })
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// stamp orders the states of a source.
type stamp struct {
	epoch uint64
	rv    int
}

func (s stamp) less(o stamp) bool { return s.epoch < o.epoch || s.epoch == o.epoch && s.rv < o.rv }

// version is one state of a key.
type version struct {
	at                    stamp
	gone, unreadable      bool
	uid, app, node, owner string
	payload               string
}

const (
	namespaces = 3
	nodes      = 4
	owners     = 3
	names      = 12
)

// source writes a log and remembers all of it.
type source struct {
	w   *world
	rng *rand.Rand

	mu      sync.Mutex // guards history
	history map[string][]*version
}

func newSource(t *testing.T, w *world, seed uint64) *source {
	t.Helper()
	return &source{w: w, rng: rand.New(rand.NewPCG(seed, 0)), history: map[string][]*version{}}
}

func (s *source) begin(t *testing.T) {
	s.w.w = s.w.lead(t, pods, false)
	s.burst(t, 20)
	s.w.sync(t)
}

// step is one thing that happens to a source.
func (s *source) step(t *testing.T) {
	switch s.rng.IntN(16) {
	case 0: // a new leader
		s.w.w = s.w.lead(t, pods, false)
		s.w.sync(t)
	case 1: // the source was restored: versions go back, some objects are other ones
		s.w.w = s.w.lead(t, pods, true)
		s.w.rv = max(0, s.w.rv-s.rng.IntN(50))
		s.burst(t, s.rng.IntN(10))
		s.w.sync(t)
	case 4: // the log is lost: a new one holds what still exists, and no tombstone of what does not
		s.lose(t)
	case 2: // nothing but progress
		s.w.rv++
		rv := strconv.Itoa(s.w.rv)
		write(t, s.w.w, delta.Record{Kind: delta.KindProgress, RV: rv, Watermark: rv})
	case 3: // so many that a reader finds holes
		s.burst(t, 300)
	default:
		s.burst(t, 1+s.rng.IntN(6))
	}
}

func (s *source) lose(t *testing.T) {
	if err := s.w.conn.Remove(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	s.w.w = s.w.lead(t, pods, true)
	var keep []string
	var lost []delta.Record
	now := s.latest()
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if s.rng.IntN(4) > 0 {
			keep = append(keep, key)
			continue
		}
		s.mu.Lock()
		s.history[key] = append(s.history[key], &version{at: stamp{s.w.w.Epoch(), 0}, gone: true})
		s.mu.Unlock()
		lost = append(lost, gone(key))
	}
	const empty = 2 // the last fence and the term
	if tail, err := s.w.conn.Tail(t.Context(), pods); err != nil {
		t.Fatal(err)
	} else if tail.Messages > empty { // the server has found the files of the old log: what a reflector's shadow would tell must be told
		s.w.put(t, lost...)
	}
	s.write(t, keep, false)
	s.w.sync(t)
}

// settle makes the end readable.
func (s *source) settle(t *testing.T) {
	for key, v := range s.latest() {
		if v.unreadable {
			s.write(t, []string{key}, false)
		}
	}
	s.w.sync(t)
}

func (s *source) burst(t *testing.T, n int) {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("ns-%d/p%02d", s.rng.IntN(namespaces), s.rng.IntN(names))
	}
	s.write(t, keys, true)
}

func (s *source) write(t *testing.T, keys []string, any bool) {
	var records []delta.Record
	for _, key := range keys {
		rec, v := s.change(key, any)
		rec = s.w.stamp([]delta.Record{rec})[0]
		v.at = stamp{s.w.w.Epoch(), s.w.rv}
		v.payload = string(rec.Payload)
		if v.unreadable {
			rec.Hash++ // does not match what is in it
		}
		s.mu.Lock()
		s.history[key] = append(s.history[key], v)
		s.mu.Unlock()
		records = append(records, rec)
	}
	write(t, s.w.w, records...)
}

// change makes the next state of a key, any one or one that can be read.
func (s *source) change(key string, any bool) (delta.Record, *version) {
	var old *version
	if h := s.history[key]; len(h) > 0 {
		old = h[len(h)-1]
	}
	if any && old != nil && !old.gone && s.rng.IntN(4) == 0 {
		return gone(key), &version{gone: true}
	}
	v := &version{
		node: "n" + strconv.Itoa(s.rng.IntN(nodes)), owner: "owner-" + strconv.Itoa(s.rng.IntN(owners)),
		app: []string{"", "a", "b", "c"}[s.rng.IntN(4)], uid: "uid-" + strconv.Itoa(s.rng.IntN(1<<30)),
		unreadable: any && s.rng.IntN(40) == 0,
	}
	if old != nil && !old.gone && s.rng.IntN(8) > 0 { // else it was deleted and made anew in between
		v.uid = old.uid
	}
	labels := ""
	if v.app != "" {
		labels = "app=" + v.app
	}
	return pod(key, options{node: v.node, owner: v.owner, labels: labels, uid: v.uid, phase: "Running", pad: s.rng.IntN(2000)}), v
}

func (s *source) latest() map[string]*version {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[string]*version{}
	for key, h := range s.history {
		if v := h[len(h)-1]; !v.gone {
			now[key] = v
		}
	}
	return now
}

// check compares what was read, of one namespace or all, with every state that the source had at the revision or after it.
func (s *source) check(at stamp, namespace string, want func(*version) bool, got map[string]*indexv1.Object, quarantined map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, h := range s.history {
		if namespace != "" && key[:len(namespace)] != namespace {
			continue
		}
		from := 0
		for i, v := range h {
			if !at.less(v.at) {
				from = i
			}
		}
		obj := got[key]
		delete(got, key)
		ok := obj == nil && at.less(h[0].at) // not made yet
		for _, v := range h[from:] {
			chosen := !v.gone && (v.unreadable || want == nil || want(v))
			switch {
			case obj == nil:
				ok = ok || !chosen
			case v.unreadable:
				ok = ok || chosen && quarantined[key] && obj.GetEncoding() == 0 && len(obj.GetPayload()) == 0
			default:
				ok = ok || chosen && string(obj.GetPayload()) == v.payload && obj.GetUid() == v.uid
			}
		}
		if !ok {
			return fmt.Errorf("%s is read at %v as version %q (there: %v); the source had %s", key, at, obj.GetResourceVersion(), obj != nil, describe(h[from:]))
		}
	}
	for key := range got {
		return fmt.Errorf("%s is read and never was", key)
	}
	return nil
}

// equal compares objects with the latest state.
func (s *source) equal(objects []*indexv1.Object, want func(*version) bool) error {
	now := s.latest()
	for _, o := range objects {
		v := now[o.GetKey()]
		if v == nil || want != nil && !want(v) || v.payload != string(o.GetPayload()) {
			return fmt.Errorf("%s is read in version %s, the source has %+v", o.GetKey(), o.GetResourceVersion(), v)
		}
		delete(now, o.GetKey())
	}
	for key, v := range now {
		if want == nil || want(v) {
			return fmt.Errorf("%s is missing", key)
		}
	}
	return nil
}

func describe(h []*version) string {
	text := ""
	for _, v := range h {
		text += fmt.Sprintf(" [%d:%d gone=%v unreadable=%v app=%q]", v.at.epoch, v.at.rv, v.gone, v.unreadable, v.app)
	}
	return text
}
