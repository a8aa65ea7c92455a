package indexer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

var (
	seeds     = flag.Int("seeds", 24, "histories of the differential test")
	firstSeed = flag.Uint64("seed", 1, "seed of the first history")
)

// A random source writes a log: bursts that leave holes for a reader that is behind, recreations,
// new leaders, new epochs with versions that go back, logs that are lost, records that cannot be
// read. Replicas are stopped and started in the middle of it. Whatever is read meanwhile must be a
// state the source had at or after the revision the answer claims, key by key; pages must come from
// one snapshot; the events of watches must add up; and at the end everything must equal the source.
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

// look is how often a replica looks for logs that were recreated. Looking, and reading without a
// pause, would take the processors from what the history is about: under the race detector most of
// them.
const look = 100 * time.Millisecond

func differential(t *testing.T, seed uint64) {
	w := newWorld(t)
	src := newSource(t, w, seed)
	src.begin(t)
	places := []*place{
		newPlace(t, w, "raw", func(c *indexer.Config) { c.Tier, c.DiscoverEvery = indexer.TierRaw, look }),
		newPlace(t, w, "compact, small ring", func(c *indexer.Config) {
			c.Tier, c.DiscoverEvery, c.RingChanges, c.RingBytes = indexer.TierCompact, look, 16, 1<<16
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
	for i := range 60 {
		src.step(t)
		if i == 20 {
			declare(t, places[rng.IntN(len(places))])
		}
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

// declare adds indexes to a live collection, of which all replicas learn.
func declare(t *testing.T, p *place) {
	t.Helper()
	req := &indexv1.AddIndexersRequest{Collection: "*/pods.v1", Indexers: []*indexv1.IndexerDefinition{
		{Name: "app", Source: &indexv1.IndexerDefinition_Label{Label: "app"}},
		{Name: "place", Source: &indexv1.IndexerDefinition_Field{Field: "spec.nodeName"}},
		{Name: "both", Source: &indexv1.IndexerDefinition_Cel{Cel: `has(object.metadata.labels.app) ? [object.metadata.labels.app, object.spec.nodeName] : []`}},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := p.now.Load().AddIndexers(ctx, req)
		if err == nil {
			return
		}
		if !away(err) || !pause(ctx, 5*time.Millisecond) {
			t.Fatalf("AddIndexers: %v", err)
		}
	}
}

// declared reads a declared index, which another replica may still be building.
func (p *place) declared(ctx context.Context, index, value string) ([]*indexv1.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		got, err := p.now.Load().ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: index, Values: []string{value}})
		switch reason := rpc.Reason(err); {
		case reason != "INDEX_BUILDING" && reason != "INDEX_NOT_FOUND", !pause(ctx, 5*time.Millisecond):
			return got.GetObjects(), err
		}
	}
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
	p.change = func(c *indexer.Config) {
		c.DataDir, c.DiscoverEvery, c.CheckpointEvery = p.dir, look, 20*time.Millisecond
	}
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
		if !pause(ctx, time.Duration(g.rng.IntN(20))*time.Millisecond) {
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
	for _, app := range []string{"a", "b", "c"} {
		got, err := p.declared(t.Context(), "app", app)
		check("ByIndex app "+app, got, err, func(v *version) bool { return v.app == app })
		got, err = p.declared(t.Context(), "both", app)
		check("ByIndex both "+app, got, err, func(v *version) bool { return v.app == app })
	}
	for i := range nodes {
		node := "n" + strconv.Itoa(i)
		got, err := p.declared(t.Context(), "place", node)
		check("ByIndex place "+node, got, err, func(v *version) bool { return v.node == node })
		got, err = p.declared(t.Context(), "both", node)
		check("ByIndex both "+node, got, err, func(v *version) bool { return v.app != "" && v.node == node })
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
