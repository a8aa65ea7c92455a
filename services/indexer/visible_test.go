package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// grants is a policy that lets alice read pods of namespaces, or of all.
func grants(namespaces []string, everywhere bool) string {
	var b strings.Builder
	b.WriteString("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: read}\nrules: [{verbs: [get, list, watch], apiGroups: [\"\"], resources: [pods]}]\n")
	for _, ns := range namespaces {
		fmt.Fprintf(&b, "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: alice, namespace: %s}\nroleRef: {kind: ClusterRole, name: read}\nsubjects: [{kind: User, name: alice}]\n", ns)
	}
	if everywhere {
		b.WriteString("---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: alice}\nroleRef: {kind: ClusterRole, name: read}\nsubjects: [{kind: User, name: alice}]\n")
	}
	return b.String()
}

// sight is a random history of objects and grants, and what alice has to see of it.
type sight struct {
	t   *testing.T
	w   *world
	l   *limited
	rng *rand.Rand

	objects map[string]options // by key
	granted map[string]bool    // namespaces
	all     bool

	regrants int // the second is of the one namespace in which no index fails, the third of all
}

var sightNamespaces = []string{"a", "a-x", "b", "c", "d"}

func (s *sight) sees(key string) bool {
	ns, _, _ := strings.Cut(key, "/")
	return s.all || s.granted[ns]
}

// visible are the keys that alice may see of those that match.
func (s *sight) visible(match func(options) bool) []string {
	var keys []string
	for _, ns := range sightNamespaces {
		for _, key := range slices.Sorted(maps.Keys(s.objects)) {
			if strings.HasPrefix(key, ns+"/") && s.sees(key) && match(s.objects[key]) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

func anything(options) bool { return true }

// mutate changes some objects.
func (s *sight) mutate(n int) {
	for range n {
		key := fmt.Sprintf("%s/p%d", sightNamespaces[s.rng.IntN(len(sightNamespaces))], s.rng.IntN(9))
		if _, there := s.objects[key]; there && s.rng.IntN(3) == 0 {
			delete(s.objects, key)
			s.w.put(s.t, gone(key))
			continue
		}
		o := options{node: fmt.Sprintf("n%d", s.rng.IntN(3)), labels: "app=" + string(rune('x'+s.rng.IntN(2)))}
		if s.rng.IntN(4) == 0 && !strings.HasPrefix(key, "d/") {
			o.labels = "" // the index "app" fails on it
		}
		s.objects[key] = o
		s.w.put(s.t, pod(key, o))
	}
}

// regrant changes what alice may see.
func (s *sight) regrant() {
	s.granted = map[string]bool{}
	s.regrants++
	for _, ns := range sightNamespaces {
		if s.regrants == 2 && ns == "d" || s.regrants != 2 && s.rng.IntN(2) == 0 {
			s.granted[ns] = true
		}
	}
	s.all = s.regrants == 3 || s.regrants != 2 && s.rng.IntN(6) == 0
	s.l.write(s.t, grants(slices.Sorted(maps.Keys(s.granted)), s.all))
}

// settle waits until what was granted is in force and what was written is served.
func (s *sight) settle() *indexv1.Consistency {
	s.t.Helper()
	ctx := as(s.t.Context(), "alice")
	now := at(s.w.w.Epoch(), s.w.rv)
	eventually(s.t, func() string {
		for _, ns := range append([]string{""}, sightNamespaces...) {
			_, err := s.l.Count(ctx, &indexv1.CountRequest{Collection: "dev/pods.v1", Namespace: ns, Consistency: now})
			if want := s.all || s.granted[ns]; (err == nil) != want {
				return fmt.Sprintf("count in %q: %v, want %t", ns, err, want)
			}
		}
		return ""
	})
	return now
}

// check compares every kind of read with what alice has to see.
func (s *sight) check(now *indexv1.Consistency) {
	s.t.Helper()
	t, ctx := s.t, as(s.t.Context(), "alice")
	const c = "dev/pods.v1"
	hidden := func(what string, m fmt.Stringer) {
		t.Helper()
		for key := range s.objects {
			if !s.sees(key) && strings.Contains(m.String(), key+`"`) {
				t.Errorf("%s shows %s: %v", what, key, m)
			}
		}
	}
	same := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s = %q, want %q", what, got, want)
		}
	}
	for what, q := range map[string]struct {
		req   *indexv1.ListRequest
		match func(options) bool
	}{
		"all":         {&indexv1.ListRequest{Collection: c}, anything},
		"by label":    {&indexv1.ListRequest{Collection: c, LabelSelector: "app=x"}, func(o options) bool { return o.labels == "app=x" }},
		"by no label": {&indexv1.ListRequest{Collection: c, LabelSelector: "app!=x"}, func(o options) bool { return o.labels != "app=x" }},
		"by field":    {&indexv1.ListRequest{Collection: c, FieldSelector: "spec.nodeName=n1"}, func(o options) bool { return o.node == "n1" }},
		"of clusters": {&indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}}, anything},
	} {
		want := s.visible(q.match)
		var got []string
		q.req.VisibleOnly, q.req.PageSize, q.req.Consistency = true, 3, now
		for {
			page, err := s.l.List(ctx, q.req)
			if err != nil {
				t.Fatalf("list %s: %v", what, err)
			}
			got = append(got, keysOf(page.GetObjects())...)
			hidden(what, page)
			left := len(want) - len(got)
			if bound := len(s.visible(anything)) - len(got); page.GetRemaining() < int64(left) || !s.all && left > 0 && page.GetRemaining() != int64(bound) {
				t.Errorf("list %s: %d remain, want %d, of %d that are visible", what, page.GetRemaining(), left, bound)
			}
			if q.req.PageToken = page.GetNextPageToken(); q.req.PageToken == "" {
				break
			}
		}
		same("list "+what, got, want)
	}
	some := []string{"a", "d"}
	named, err := s.l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: some, VisibleOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	same("list of two namespaces", keysOf(named.GetObjects()), slices.DeleteFunc(s.visible(anything), func(key string) bool {
		return !strings.HasPrefix(key, "a/") && !strings.HasPrefix(key, "d/")
	}))
	onN1 := s.visible(func(o options) bool { return o.node == "n1" })
	by, err := s.l.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: c, Index: "node", Values: []string{"n1"}, VisibleOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	same("by index", keysOf(by.GetObjects()), onN1)
	keys, err := s.l.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: c, Index: "node", Value: "n1", VisibleOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	same("index keys", keys.GetKeys(), onN1)
	like, err := s.l.Index(ctx, &indexv1.IndexRequest{Collection: c, Index: "node", Object: []byte(`{"metadata":{"name":"x"},"spec":{"nodeName":"n1"}}`), VisibleOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	same("by example", keysOf(like.GetObjects()), onN1)
	for index, of := range map[string]func(string) string{
		"namespace": func(key string) string { ns, _, _ := strings.Cut(key, "/"); return ns },
		"node":      func(key string) string { return s.objects[key].node },
	} {
		want := map[string]int64{}
		for _, key := range s.visible(anything) {
			want[of(key)]++
		}
		got := map[string]int64{}
		for token := ""; ; {
			values, err := s.l.ListIndexFuncValues(ctx, &indexv1.ListIndexFuncValuesRequest{Collection: c, Index: index, PageSize: 2, PageToken: token, VisibleOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range values.GetValues() {
				got[v.GetValue()] += v.GetKeys()
			}
			if token = values.GetNextPageToken(); token == "" {
				break
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("values of %s = %v, want %v", index, got, want)
		}
	}
	count, err := s.l.Count(ctx, &indexv1.CountRequest{Collection: c, LabelSelector: "app", VisibleOnly: true})
	if want := len(s.visible(func(o options) bool { return o.labels != "" })); err != nil || count.GetCount() != int64(want) {
		t.Errorf("count = %v, %v, want %d", count, err, want)
	}
	// The index has no values of some objects: of how many, and of which, is of what is visible.
	failing := s.visible(func(o options) bool { return o.labels == "" })
	req := &indexv1.ByIndexRequest{Collection: c, Index: "app", Values: []string{"x"}, VisibleOnly: true}
	by, err = s.l.ByIndex(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	hidden("an index that fails", by)
	n, first := int64(0), []string(nil)
	for _, u := range by.GetUnindexed() {
		n, first = n+u.GetCount(), u.GetKeys()
	}
	if n != int64(len(failing)) {
		t.Errorf("%d objects without values, want %d", n, len(failing))
	}
	same("those without values", first, failing[:min(len(failing), 10)])
	req.Strict = true
	_, err = s.l.ByIndex(ctx, req)
	if (err == nil) != (len(failing) == 0) || err != nil && rpc.Reason(err) != "INDEX_FAILED" {
		t.Errorf("strict: %v, and %d objects have no values", err, len(failing))
	}
	if err != nil {
		for key := range s.objects {
			if text := err.Error() + rpc.Info(err).String(); !s.sees(key) && strings.Contains(text, key) {
				t.Errorf("the error names %s: %s", key, text)
			}
		}
	}
}

// sumUp adds up what a watch sends.
type sumUp struct {
	mu     sync.Mutex // guards the rest
	state  map[string]string
	seen   map[string]bool
	resume *deltav1.Position
	hidden func(key string) bool // a key that must not come
	leaks  []string
}

func (f *sumUp) take(resp *indexv1.WatchResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch k := resp.GetKind().(type) {
	case *indexv1.WatchResponse_Gap:
		f.seen, f.resume = map[string]bool{}, nil
	case *indexv1.WatchResponse_InitialStateEnd:
		for key := range f.state {
			if f.seen != nil && !f.seen[key] {
				delete(f.state, key)
			}
		}
		f.seen = nil
	case *indexv1.WatchResponse_Events:
		for _, e := range k.Events.GetEvents() {
			key := e.GetObject().GetKey()
			if f.hidden != nil && f.hidden(key) {
				f.leaks = append(f.leaks, e.String())
			}
			if e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED {
				delete(f.state, key)
				continue
			}
			f.state[key] = e.GetObject().GetResourceVersion()
			if f.seen != nil {
				f.seen[key] = true
			}
		}
	}
	if resp.GetPosition() != nil {
		f.resume = resp.GetPosition()
	}
}

// run follows until ctx ends.
func (f *sumUp) run(ctx context.Context, l *limited, req *indexv1.WatchRequest) error {
	f.mu.Lock()
	req = proto.CloneOf(req)
	if req.Resume = f.resume; f.resume == nil {
		f.seen = map[string]bool{}
	}
	f.mu.Unlock()
	s, err := l.Watch(as(ctx, "alice"), req)
	for err == nil {
		var resp *indexv1.WatchResponse
		if resp, err = s.Recv(); err == nil {
			f.take(resp)
		}
	}
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// differs says how a watch's state differs from what alice has to see.
func (f *sumUp) differs(s *sight, match func(options) bool) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	want := s.visible(match)
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(f.state)); !slices.Equal(got, want) {
		return fmt.Sprintf("a watch has %q, want %q", got, want)
	}
	return ""
}

func TestWhatIsVisibleIsWhatBruteForceFindsInRandomHistoriesOfObjectsAndGrants(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorld(t)
	w.start(t)
	s := &sight{t: t, w: w, l: w.limited(t, ""), rng: rand.New(rand.NewPCG(seed, 1)), objects: map[string]options{}, granted: map[string]bool{}}
	for _, ns := range sightNamespaces { // they tell that a watch knows what is granted
		key, o := ns+"/mark", options{node: "n1", labels: "app=x"}
		s.objects[key] = o
		w.put(t, pod(key, o))
	}
	s.mutate(30)
	w.serve(t, s.l)
	root := as(t.Context(), "root")
	_, err := s.l.AddIndexers(root, &indexv1.AddIndexersRequest{Collection: "dev/pods.v1", Indexers: []*indexv1.IndexerDefinition{
		{Name: "app", Source: &indexv1.IndexerDefinition_Cel{Cel: `object.metadata.labels["app"]`}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	onN1 := func(o options) bool { return o.node == "n1" }
	watches := []struct {
		req   *indexv1.WatchRequest
		match func(options) bool
		f     *sumUp
	}{
		{&indexv1.WatchRequest{Collection: "dev/pods.v1", VisibleOnly: true}, anything, &sumUp{state: map[string]string{}}},
		{&indexv1.WatchRequest{Collection: "dev/pods.v1", VisibleOnly: true, Index: "node", IndexValue: "n1"}, onN1, &sumUp{state: map[string]string{}}},
		{&indexv1.WatchRequest{Collection: "dev/pods.v1", VisibleOnly: true, FieldSelector: "spec.nodeName=n1"}, onN1, &sumUp{state: map[string]string{}}},
		{&indexv1.WatchRequest{Collection: "dev/pods.v1", VisibleOnly: true}, anything, &sumUp{state: map[string]string{}}}, // ends, and resumes when more or less is visible
	}
	again := watches[3]
	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	for _, one := range watches[:3] {
		open.Go(func() {
			if err := one.f.run(ctx, s.l, one.req); err != nil {
				t.Errorf("watch %v: %v", one.req, err)
			}
		})
	}
	for step := range 12 {
		s.mutate(6)
		if step%3 != 2 {
			s.regrant()
			s.mutate(6)
		}
		now := s.settle()
		once, stop := context.WithCancel(t.Context())
		var resumed sync.WaitGroup
		resumed.Go(func() {
			if err := again.f.run(once, s.l, again.req); err != nil {
				t.Errorf("step %d: resumed watch: %v", step, err)
			}
		})
		s.check(now)
		for _, one := range watches {
			eventually(t, func() string { return one.f.differs(s, one.match) })
		}
		// The watches know what is granted: from here on nothing else may come.
		for _, one := range watches {
			one.f.mu.Lock()
			one.f.hidden = func(key string) bool { return !s.sees(key) }
			one.f.mu.Unlock()
		}
		s.mutate(8)
		s.settle()
		for _, one := range watches {
			eventually(t, func() string { return one.f.differs(s, one.match) })
			one.f.mu.Lock()
			one.f.hidden = nil
			for _, leak := range one.f.leaks {
				t.Errorf("step %d: the watch %v was sent %s", step, one.req, leak)
			}
			one.f.leaks = nil
			one.f.mu.Unlock()
		}
		stop()
		resumed.Wait()
	}
}

func TestAPageTokenBelongsToWhatWasVisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/1", options{}), pod("a/2", options{}), pod("b/1", options{}))
	l := w.limited(t, grants([]string{"a"}, false))
	w.serve(t, l)
	ctx := as(t.Context(), "alice")
	req := &indexv1.ListRequest{Collection: "dev/pods.v1", PageSize: 1, VisibleOnly: true}
	page, err := l.List(ctx, req)
	if err != nil || page.GetNextPageToken() == "" {
		t.Fatalf("first page: %v, %v", page, err)
	}
	l.write(t, grants([]string{"b"}, false))
	eventually(t, func() string {
		next := proto.CloneOf(req)
		next.PageToken = page.GetNextPageToken()
		if got, err := l.List(ctx, next); rpc.Reason(err) != "SNAPSHOT_GONE" || rpc.Info(err).GetMetadata()["snapshot"] != "scope" || rpc.Info(err).GetMetadata()["page_token"] != "" {
			return fmt.Sprintf("%v, %v", got, err)
		}
		return ""
	})
	// Somebody else's token shows nothing but what oneself may see.
	all, err := l.List(as(t.Context(), "root"), req)
	if err != nil {
		t.Fatal(err)
	}
	req.PageToken = all.GetNextPageToken()
	if got, err := l.List(ctx, req); rpc.Code(err) != codes.FailedPrecondition {
		t.Errorf("root's token gives alice %v, %v", got, err)
	}
}

func TestWhatAReaderKnowsIsAnsweredWithinWhatItMaySee(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/1", options{}), pod("b/1", options{}))
	l := w.limited(t, grants([]string{"a"}, false))
	w.serve(t, l)
	for name, req := range map[string]*indexv1.WatchRequest{
		"visible only":  {Collection: "dev/pods.v1", VisibleOnly: true},
		"one namespace": {Collection: "dev/pods.v1", Namespace: "a"},
	} {
		req.Known, req.KnownEpoch = map[string]string{"b/1": "0", "b/2": "0", "a/3": "0"}, w.w.Epoch()
		ctx, cancel := context.WithCancel(as(t.Context(), "alice"))
		stream, err := l.Watch(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		gone := map[string]*indexv1.Event{}
		for {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range resp.GetEvents().GetEvents() {
				if e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED {
					gone[e.GetObject().GetKey()] = e
				}
			}
			if resp.GetInitialStateEnd() != nil {
				break
			}
		}
		cancel()
		there, missing := gone["b/1"], gone["b/2"]
		if there == nil || missing == nil || gone["a/3"] == nil {
			t.Fatalf("%s: told of %v", name, gone)
		}
		if there.Object.Key = "b/2"; !proto.Equal(there, missing) {
			t.Errorf("%s: it tells that b/1 exists: %v, and of b/2, which does not, %v", name, there, missing)
		}
	}
}
