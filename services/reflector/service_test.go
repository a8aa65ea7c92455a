package reflector_test

import (
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	nats0 "github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func dial(t testing.TB, svc *reflector.Service) reflectorv1.ReflectorServiceClient {
	t.Helper()
	addr, err := svc.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return reflectorv1.NewReflectorServiceClient(conn)
}

// reflection waits until a collection's reflection satisfies cond.
func reflection(t testing.TB, c reflectorv1.ReflectorServiceClient, name, what string, cond func(*reflectorv1.Reflection) bool) *reflectorv1.Reflection {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	var last *reflectorv1.Reflection
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		resp, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{Collection: name})
		if err == nil {
			if last = resp.GetReflections()[0]; cond(last) {
				return last
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not seen in time: %v, %v", what, last, err)
		}
	}
}

func watching(r *reflectorv1.Reflection) bool {
	return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING
}

func TestAnUnreadableObjectIsQuarantinedAndDelaysNothing(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) {
		return 200, list("10", "", item("a", 1), `{"metadata":{"name":"norv","namespace":"default"}}`, `"text"`, item("b", 2))
	}
	steps := a.stepped()
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Backoff = reflector.Backoff{Base: time.Minute, Cap: time.Hour} // the list that is due after an event nobody can name comes later
	svc, _ := start(t, cfg, a.URL, nats)
	c := dial(t, svc)
	m := follow(t, nats, pods)
	m.until(t, "the good objects of the list", func() bool { return m.revision().RV == "10" && len(m.live()) == 2 })
	reflection(t, c, "pods", "two quarantined", func(r *reflectorv1.Reflection) bool { return r.GetQuarantinedTotal() == 2 })
	for _, line := range []string{
		`this is not JSON`,
		event("MODIFIED", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"11"},"spec":nonsense}`),
		event("MODIFIED", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"b","namespace":"default","resourceVersion":"12"}}`), // of another kind
		event("ADDED", object("c", 13)),
	} {
		steps <- line
	}
	m.until(t, "the good object behind them", func() bool { return m.live()["default/c"] == "13" })
	r := reflection(t, c, "dev/pods.v1", "five quarantined", func(r *reflectorv1.Reflection) bool { return r.GetQuarantinedTotal() == 5 })
	reasons := map[string]string{}
	for _, q := range r.GetQuarantined() {
		reasons[q.GetKey()] = q.GetReason()
	}
	if !strings.Contains(reasons["default/a"], "JSON") || !strings.Contains(reasons["default/b"], "Service") || reasons["default/norv"] == "" || reasons[""] == "" {
		t.Errorf("quarantined %v", reasons)
	}
	if a, _ := m.get("default/a"); a.RV != "11" || a.Payload != nil || a.Encoding != delta.EncodingUnreadable {
		t.Errorf("the log says of a bad object %+v, want a version without payload", a)
	}
	steps <- event("MODIFIED", object("a", 14))
	steps <- event("DELETED", object("b", 15))
	m.until(t, "the repaired object", func() bool { return m.live()["default/a"] == "14" && m.live()["default/b"] == "" })
	if at := m.revision().RV; at != "10" {
		t.Errorf("revision %s is claimed behind an event that nobody could read", at)
	}
	r = reflection(t, c, "pods", "two healed", func(r *reflectorv1.Reflection) bool { return r.GetQuarantinedTotal() == 3 })
	if r.GetObjects() != 2 || r.GetRelists() != 1 || r.GetWatches() != 1 {
		t.Errorf("%d objects, %d lists, %d watches; want 2, 1, 1", r.GetObjects(), r.GetRelists(), r.GetWatches())
	}
}

func TestACollectionThatAnswers403HoldsNoOtherBackAndRecovers(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var allowed atomic.Bool
	a.onList = func(int, url.Values) (int, string) {
		if allowed.Load() {
			return 200, list("10", "", item("a", 1))
		}
		return 403, status(403, "Forbidden", "pods is forbidden")
	}
	cfg := quick()
	cfg.Resources = append(cfg.Resources, reflector.Resource{Name: "nodes.v1"})
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, cfg, a.URL, nats)
	c := dial(t, svc)
	reflection(t, c, "nodes", "nodes watched", watching)
	r := reflection(t, c, "pods", "pods failing", func(r *reflectorv1.Reflection) bool {
		return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF && r.GetLastError() != ""
	})
	if !strings.Contains(r.GetLastError(), "403 Forbidden") || r.GetLastErrorAt() == nil {
		t.Errorf("last error %q", r.GetLastError())
	}
	m := follow(t, nats, pods)
	if m.readable() {
		t.Error("a collection that was never listed is readable")
	}
	allowed.Store(true)
	m.until(t, "recovery", func() bool { return m.revision().RV == "10" })
	if r := reflection(t, c, "pods", "pods watched", watching); r.GetLastError() != "" {
		t.Errorf("error %q stays after recovery", r.GetLastError())
	}
}

func TestAResourceThatIsNotServedYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.served = false
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	cfg := quick()
	cfg.Resources[0].Name = "pods"
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, cfg, a.URL, nats)
	c := dial(t, svc)
	reflection(t, c, "pods", "not served", func(r *reflectorv1.Reflection) bool { return r.GetLastError() != "" })
	a.set(func(a *api) { a.served = true })
	m := follow(t, nats, pods)
	m.until(t, "the first list", func() bool { return m.revision().RV == "10" })
	if r := reflection(t, c, "pods", "watching", watching); r.GetCollection() != "dev/pods.v1" {
		t.Errorf("collection %q", r.GetCollection())
	}
}

func TestTwoReflectorsHaveOneLeaderAndTheSecondTakesOverWithoutAGap(t *testing.T) {
	t.Parallel()
	a, newest := ticking(t)
	nats := embeddedtest.NATS(t).URL()
	first, stop := start(t, quick(), a.URL, nats)
	reflection(t, dial(t, first), "pods", "the first leads", watching)
	second, _ := start(t, quick(), a.URL, nats)
	c2 := dial(t, second)
	m := follow(t, nats, pods)
	at := func(n int64) func() bool {
		return func() bool { return delta.Compare(m.revision().RV, strconv.FormatInt(n, 10)) >= 0 }
	}
	m.until(t, "events by the first", at(newest.Load()+50))
	if r := reflection(t, c2, "pods", "the second's state", func(*reflectorv1.Reflection) bool { return true }); r.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY {
		t.Errorf("the second is %v in term %d while the first leads", r.GetState(), r.GetTerm())
	}
	stop()
	m.until(t, "events by the second", at(newest.Load()+50))
	if n := len(a.requests(false)); n != 1 {
		t.Errorf("%d lists, want the failover to resume the watch", n)
	}
	if n := wellOrdered(t, m); n != 2 || m.resets != 1 {
		t.Errorf("%d terms, %d resets; want two terms and no reset", n, m.resets)
	}
}

func TestAPausedLeadersAppendsAreFenced(t *testing.T) {
	t.Parallel()
	a, newest := ticking(t)
	nats := embeddedtest.NATS(t).URL()
	v := newValve(t, nats)
	cfg := quick()
	cfg.LeaseTTL = time.Second
	first, _ := start(t, cfg, a.URL, "nats://"+v.addr)
	reflection(t, dial(t, first), "pods", "the first leads", watching)
	second, _ := start(t, cfg, a.URL, nats)
	c2 := dial(t, second)
	m := follow(t, nats, pods)
	at := func(n int64) func() bool {
		return func() bool { return delta.Compare(m.revision().RV, strconv.FormatInt(n, 10)) >= 0 }
	}
	m.until(t, "events by the first", at(newest.Load()+50))
	v.shut() // what the first sends from here on waits, as if it were stopped
	reflection(t, c2, "pods", "the second leads", watching)
	m.until(t, "events by the second", at(newest.Load()+50))
	v.open() // its pipeline arrives now
	m.until(t, "events after that", at(newest.Load()+200))
	if n := wellOrdered(t, m); n < 2 || m.resets != 1 {
		t.Errorf("%d terms, %d resets; want the takeover and no reset", n, m.resets)
	}
	if n := len(a.requests(false)); n != 1 {
		t.Errorf("%d lists, want the failover to resume the watch", n)
	}
}

// ticking is a source that writes an event every few milliseconds to its watcher, from the version
// asked for.
func ticking(t testing.TB) (*api, *atomic.Int64) {
	t.Helper()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	newest := &atomic.Int64{}
	newest.Store(10)
	a.onWatch = func(_ int, q url.Values, w *wire) {
		at, _ := strconv.Atoi(q.Get("resourceVersion"))
		w.send()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				newest.Add(1)
				for ; at < int(newest.Load()); at++ {
					w.send(event("MODIFIED", object("p"+strconv.Itoa((at+1)%7), at+1)))
				}
			case <-w.done:
				return
			}
		}
	}
	return a, newest
}

// wellOrdered checks that no record of a term follows a later term's, that no term begins twice and
// that the state is a ticking source's. It returns the number of terms.
func wellOrdered(t testing.TB, m *mirror) int {
	t.Helper()
	m.mu.Lock()
	terms := map[uint64]int{}
	var high uint64
	for _, r := range m.records {
		if r.Kind == delta.KindTerm {
			if terms[r.Term]++; terms[r.Term] > 1 {
				t.Errorf("term %d began twice", r.Term)
			}
		}
		if r.Term < high {
			t.Errorf("a record of term %d after one of term %d", r.Term, high)
		}
		if r.Kind == delta.KindTerm {
			high = r.Term
		}
	}
	m.mu.Unlock()
	for k, rv := range m.live() {
		n, _ := strconv.Atoi(rv)
		if k != "default/a" && string(k) != "default/p"+strconv.Itoa(n%7) {
			t.Errorf("%s is at %s", k, rv)
		}
	}
	return len(terms)
}

func TestALogThatIsRemovedBecomesANewEpochAndIsFilledAgain(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) { return 200, list(strconv.Itoa(10*n), "", items(5, 3)...) }
	nats := embeddedtest.NATS(t).URL()
	start(t, quick(), a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "the first list", func() bool { return m.revision().RV == "10" })
	before := m.revision()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Remove(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	m.until(t, "the log filled again", func() bool {
		rev := m.revision()
		return rev.Epoch > before.Epoch && rev.RV == "20" && len(m.live()) == 5
	})
	if m.resets < 2 {
		t.Errorf("%d resets, want an explicit gap", m.resets)
	}
}

func TestRelistOnDemandAndUnknownCollections(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) { return 200, list(strconv.Itoa(10*n), "", item("a", 1)) }
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, quick(), a.URL, nats)
	c := dial(t, svc)
	reflection(t, c, "pods", "watching", watching)
	resp, err := c.Relist(t.Context(), &reflectorv1.RelistRequest{Collection: "pods.v1"})
	if err != nil || resp.GetCollection() != "dev/pods.v1" {
		t.Fatalf("Relist() = %v, %v", resp, err)
	}
	reflection(t, c, "pods", "a second list", func(r *reflectorv1.Reflection) bool {
		return r.GetRelists() == 2 && r.GetRevision().GetResourceVersion() == "20" && r.GetTerm() > 0
	})
	if _, err := c.Relist(t.Context(), &reflectorv1.RelistRequest{}); rpc.Code(err) != codes.InvalidArgument || rpc.Violations(err)["collection"] == "" {
		t.Errorf("Relist() of nothing = %v", err)
	}
	for _, err := range []error{
		func() error {
			_, err := c.Relist(t.Context(), &reflectorv1.RelistRequest{Collection: "moons"})
			return err
		}(),
		func() error {
			_, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{Collection: "dev/moons.v1"})
			return err
		}(),
	} {
		if rpc.Code(err) != codes.NotFound || rpc.Reason(err) != "COLLECTION_NOT_FOUND" {
			t.Errorf("unknown collection = %v", err)
		}
	}
}

func TestASecondScopeOfAResourceIsRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "") }
	cfg := quick()
	cfg.DiscoverEvery = time.Hour
	cfg.Resources = append(cfg.Resources, reflector.Resource{Name: "pods", Scope: kube.Scope{Namespace: "other"}})
	svc, _ := start(t, cfg, a.URL, embeddedtest.NATS(t).URL())
	c := dial(t, svc)
	eventually(t, "one is refused, with the time of the next try", func() bool {
		resp, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, r := range resp.GetReflections() {
			if r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF && r.GetReason() == "SECOND_SCOPE" &&
				strings.Contains(r.GetLastError(), "one scope") && time.Until(r.GetNextRetryAt().AsTime()) > 30*time.Minute {
				refused++
			}
		}
		return refused == 1
	})
}

// A request for a list that stands in the bucket, of what is not served, looks for it once, and
// does not end the waits after that.
func TestARelistOfWhatIsNotServedIsNoStorm(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	nats := embeddedtest.NATS(t).URL()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b, err := conn.Bucket(t.Context(), "deltaplane-reflections", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), "relist/dev/moons.v1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "moons.v1"}}
	cfg.DiscoverEvery = time.Hour
	cfg.Backoff = reflector.Backoff{Base: time.Hour, Cap: time.Hour, Jitter: -1}
	svc, _ := start(t, cfg, f.URL, nats)
	c := dial(t, svc)
	reflection(t, c, "moons", "not served", func(r *reflectorv1.Reflection) bool { return r.GetReason() == "NOT_SERVED" })
	for _, resource := range []string{"pods", "nodes", "configmaps"} { // in that time a storm would be seen
		add(t, c, &reflectorv1.ReflectionSpec{Resource: resource})
		reflection(t, c, resource, "another one is watched", watching)
	}
	if n := f.count("/api/v1"); n > 10 {
		t.Errorf("%d requests", n)
	}
}

func TestConfigNamesEveryFaultTogether(t *testing.T) {
	t.Parallel()
	cfg := reflector.Config{
		Cluster: "a/b", PageSize: -1, StageBytes: -1, LeaseTTL: -1, Gather: time.Minute, Backoff: reflector.Backoff{Base: 2, Cap: 1},
		Resources: []reflector.Resource{{Name: "Pods"}, {Name: "nodes"}, {Name: "nodes"}},
	}
	err := cfg.Validate()
	for _, want := range []string{"cluster", "page size", "stage bytes", "lease ttl", "time to gather", "backoff", `"Pods"`, "named twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want it to name %q", err, want)
		}
	}
	if err := (reflector.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	for in, want := range map[string][2]string{"pods": {"pods", ""}, "leases.coordination.k8s.io/kube-node-lease": {"leases.coordination.k8s.io", "kube-node-lease"}} {
		if r, err := reflector.ParseResource(in); err != nil || r.Name != want[0] || r.Scope.Namespace != want[1] {
			t.Errorf("ParseResource(%q) = %v, %v", in, r, err)
		}
	}
	for _, in := range []string{"", "pods/", "a/b/c", "po ds", "*x"} {
		if _, err := reflector.ParseResource(in); err == nil {
			t.Errorf("ParseResource(%q) = nil", in)
		}
	}
}

func TestALeaderRepairsRecordsOfTheLogThatItCannotRead(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", item("a", 1), item("ghost", 2))
		}
		return 200, list("12", "", item("a", 1))
	}
	nats := embeddedtest.NATS(t).URL()
	_, stop := start(t, quick(), a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "both objects", func() bool { return m.revision().RV == "10" && len(m.live()) == 2 })
	stop()
	conn, err := nats0.Connect(nats)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, name := range []delta.Key{"default/ghost", "default/a"} { // damaged
		msg := nats0.NewMsg(pods.Subject(name))
		msg.Header.Set(delta.HeaderVersion, "none")
		if err := conn.PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	start(t, quick(), a.URL, nats)
	fresh := follow(t, nats, pods)
	fresh.until(t, "a readable log", func() bool {
		ghost, ok := fresh.get("default/ghost")
		return ok && ghost.Tombstone() && len(fresh.live()) == 1 && fresh.revision().RV == "12"
	})
}
