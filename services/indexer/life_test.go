package indexer_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

func list(t testing.TB, r *replica) []string {
	t.Helper()
	resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", View: indexv1.View_VIEW_KEYS})
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	return keysOf(resp.GetObjects())
}

// eventually runs check until it returns an empty string; what it waits for is
// pushed by nobody.
func eventually(t testing.TB, check func() string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(problem)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestAnIndexerStartedBeforeTheReflectorAnswersOnlyOnceSynced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.index(t, nil)
	get := &indexv1.GetRequest{Collection: "pods", Key: "a/one"}
	_, err := r.Get(t.Context(), get)
	if reason := rpc.Reason(err); reason != "COLLECTION_NOT_FOUND" {
		wantStatus(t, "before the logs are listed", err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
	}
	eventually(t, func() string {
		if _, err = r.Get(t.Context(), get); rpc.Reason(err) == "COLLECTION_NOT_SYNCED" {
			return err.Error()
		}
		return ""
	})
	wantStatus(t, "before the log exists", err, codes.NotFound, "COLLECTION_NOT_FOUND", "")
	w.w = w.lead(t, pods, false)
	w.put(t, fleet()...)
	eventually(t, func() string {
		_, err = r.Get(t.Context(), get)
		if rpc.Reason(err) == "COLLECTION_NOT_SYNCED" {
			return ""
		}
		return fmt.Sprint("before the list is complete: ", err)
	})
	for _, c := range []*indexv1.Consistency{nil, at(0, 1), at(1, 1)} { // whatever the consistency
		_, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", Consistency: c})
		wantStatus(t, "List before the list is complete", err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
		if rpc.RetryDelay(err) <= 0 {
			t.Error("no RetryInfo")
		}
	}
	_, err = r.ListIndexers(t.Context(), &indexv1.ListIndexersRequest{Collection: "pods"})
	wantStatus(t, "ListIndexers", err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
	w.sync(t)
	w.caughtUp(t, r)
	if got := list(t, r); len(got) != 4 {
		t.Errorf("after the synced record = %q", got)
	}
}

func TestNamedCollectionsAreNotSyncedRatherThanNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.index(t, func(c *indexer.Config) { c.Collections = []string{"dev/pods.v1", "dev/jobs.v1.batch"} })
	for _, name := range []string{"jobs", "jobs.batch", "dev/jobs.v1.batch"} {
		_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: name, Key: "a/b"})
		wantStatus(t, name, err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
	}
	w.start(t, fleet()...)
	w.caughtUp(t, r) // the collection that cannot be listed does not hold the other back
	_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "jobs", Key: "a/b"})
	wantStatus(t, "jobs", err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
}

func TestAShortNameOfTwoCollectionsIsAmbiguous(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.index(t, func(c *indexer.Config) { c.Collections = []string{"dev/pods.v1", "prod/pods.v1"} })
	_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/b"})
	wantStatus(t, "pods", err, codes.InvalidArgument, "COLLECTION_AMBIGUOUS", "")
	_, err = r.Get(t.Context(), &indexv1.GetRequest{Collection: "prod/pods", Key: "a/b"})
	wantStatus(t, "prod/pods", err, codes.Unavailable, "COLLECTION_NOT_SYNCED", "")
}

func TestAtLeastWaitsForTheRevisionOrNamesTheOneReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...) // revision 5
	one, two := w.index(t, nil), w.index(t, nil)
	w.caughtUp(t, one)
	w.caughtUp(t, two)
	epoch := w.w.Epoch()
	short := at(epoch, 7)
	short.Timeout = durationpb.New(30 * time.Millisecond)
	_, err := one.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: short})
	wantStatus(t, "Get at 7", err, codes.DeadlineExceeded, "REVISION_NOT_REACHED", "")
	if m := rpc.Info(err).GetMetadata(); m["resource_version"] != "5" || m["epoch"] != strconv.FormatUint(epoch, 10) {
		t.Errorf("metadata = %v", m)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = one.WaitForRevision(ctx, &indexv1.WaitForRevisionRequest{
		Revisions: []*deltav1.CollectionRevision{{Collection: "pods", Revision: &deltav1.Revision{ResourceVersion: "7"}}}, Timeout: durationpb.New(time.Minute),
	})
	wantStatus(t, "WaitForRevision within the caller's deadline", err, codes.DeadlineExceeded, "REVISION_NOT_REACHED", "")

	type result struct {
		rv  string
		err error
	}
	results := make(chan result, 2)
	for _, r := range []*replica{one, two} { // read your writes, on any replica
		go func() {
			resp, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: at(0, 7)})
			results <- result{resp.GetObject().GetResourceVersion(), err}
		}()
	}
	w.put(t, pod("a/two", options{}), pod("a/one", options{node: "n7"}))
	for range 2 {
		if got := <-results; got.err != nil || got.rv != "7" {
			t.Errorf("a read at 7 = %+v", got)
		}
	}
}

func TestQuietCollectionsAdvanceByProgressRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	w.rv = 900
	write(t, w.w, delta.Record{Kind: delta.KindProgress, Watermark: "900"})
	resp, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: at(0, 900)})
	if err != nil || resp.GetRevision().GetResourceVersion() != "900" {
		t.Errorf("Get at 900 = %v, %v", resp.GetRevision(), err)
	}
}

func TestReplacedRecordsReplaysAndRecreationsAreApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	for i := range 40 { // a hot key: the log keeps only the last, so readers meet holes
		w.put(t, pod("a/one", options{node: fmt.Sprint("n", i)}))
	}
	w.put(t, gone("a/two"), pod("b/one", options{uid: "other", node: "n1"}))
	w.caughtUp(t, r)
	resp, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1", "n39"}})
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "by node", resp.GetObjects(), "a/one", "b/one")
	if resp.GetObjects()[1].GetUid() != "other" {
		t.Errorf("uid = %s", resp.GetObjects()[1].GetUid())
	}
	stale := pod("a/two", options{}) // an event from before the deletion, appended again
	stale.RV, stale.Watermark, stale.Payload = "2", strconv.Itoa(w.rv), []byte(strings.Replace(string(stale.Payload), `"RV"`, `"2"`, 1))
	write(t, w.w, stale)
	w.put(t, pod("b/two", options{}))
	w.caughtUp(t, r)
	if got := list(t, r); !slices.Equal(got, []string{"a/one", "b/one", "b/two"}) {
		t.Errorf("after a replayed event = %q, want the deletion to hold", got)
	}
}

func TestANewEpochDeletesObjectsItDoesNotName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	old := w.w.Epoch()
	if err := w.conn.Remove(t.Context(), pods); err != nil { // the log is lost
		t.Fatal(err)
	}
	w.w = w.lead(t, pods, true)
	w.rv = 2 // the source was restored to an earlier state
	w.put(t, pod("a/one", options{node: "n9"}), pod("c/new", options{}))
	eventually(t, func() string {
		_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/one"})
		if rpc.Reason(err) == "COLLECTION_NOT_SYNCED" {
			return ""
		}
		return fmt.Sprint("in the new epoch before it is synced: ", err)
	})
	w.sync(t)
	w.caughtUp(t, r)
	if w.w.Epoch() <= old {
		t.Fatalf("epoch %d after %d", w.w.Epoch(), old)
	}
	if got := list(t, r); !slices.Equal(got, []string{"a/one", "c/new"}) {
		t.Errorf("in the new epoch = %q, want what it named only", got)
	}
	resp, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: at(old, 1_000_000)})
	if err != nil || resp.GetObject().GetResourceVersion() != "3" {
		t.Errorf("a revision of the old epoch is behind every one of the new: %v, %v", resp, err)
	}
}

func TestAnObjectThatCannotBeReadIsAnErrorOnItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	broken := map[string]delta.Record{}
	for _, key := range []string{"x/notjson", "x/array", "x/hash", "x/other", "x/labels", "x/unread"} {
		broken[key] = pod(key, options{})
	}
	set := func(key string, change func(*delta.Record)) {
		rec := broken[key]
		change(&rec)
		broken[key] = rec
	}
	set("x/notjson", func(r *delta.Record) { r.Payload = []byte(`{"metadata":`) })
	set("x/array", func(r *delta.Record) { r.Payload = []byte(`[]`) })
	set("x/hash", func(r *delta.Record) { r.Hash, r.Checksum = 42, 42 })
	set("x/other", func(r *delta.Record) { r.Payload = pod("x/another", options{}).Payload })
	set("x/labels", func(r *delta.Record) {
		r.Payload = []byte(`{"metadata":{"namespace":"x","name":"labels","labels":{"a":1}}}`)
	})
	set("x/unread", func(r *delta.Record) { r.Payload, r.Encoding = nil, delta.EncodingUnreadable })
	var records []delta.Record
	for _, rec := range broken {
		records = append(records, rec)
	}
	hinted := pod("a/one", options{}) // was readable on n1
	hinted.Payload, hinted.Hints, hinted.Labels = []byte("x"), map[string][]string{"node": {"n1"}}, map[string][]string{"app": {"web"}}
	w.put(t, append(records, hinted)...)
	w.caughtUp(t, r)
	keys := []string{"a/one", "b/one"}
	for key := range broken {
		_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: key})
		wantStatus(t, key, err, codes.DataLoss, "KEY_QUARANTINED", "")
		keys = append(keys, key)
	}
	batch, err := r.BatchGet(t.Context(), &indexv1.BatchGetRequest{Collection: "pods", Keys: keys})
	if err != nil || len(batch.GetQuarantinedKeys()) != 7 || len(batch.GetObjects()) != 1 {
		t.Errorf("BatchGet = %v, %v", batch, err)
	}
	if got := list(t, r); len(got) != 10 {
		t.Errorf("List = %q, want the keys of broken objects in it", got)
	}
	byNode, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}})
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "by the node it was on", byNode.GetObjects(), "a/one", "b/one")
	if o := byNode.GetObjects()[0]; o.GetPayload() != nil || o.GetEncoding() != deltav1.Encoding_ENCODING_UNSPECIFIED {
		t.Errorf("a broken object is served as %v", o)
	}
	byKey, err := r.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: "pods", Index: "node", Value: "n1"})
	if err != nil || !slices.Equal(byKey.GetKeys(), []string{"a/one", "b/one"}) || !slices.Equal(byKey.GetQuarantinedKeys(), []string{"a/one"}) {
		t.Errorf("IndexKeys = %v, %v, want the broken one marked", byKey, err)
	}
	all, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
	if err != nil || all.GetCollections()[0].GetQuarantined() != 7 {
		t.Errorf("quarantined = %d, want 7", all.GetCollections()[0].GetQuarantined())
	}
	w.put(t, pod("a/one", options{node: "n1"}))
	w.caughtUp(t, r)
	if _, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/one"}); err != nil {
		t.Errorf("after repair: %v", err)
	}
}

func TestTwoIndexersAgreeAndARestartedOneCatchesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var records []delta.Record
	for i := range 300 {
		records = append(records, pod(fmt.Sprintf("n%d/p%d", i%3, i), options{node: fmt.Sprint("n", i%7)}))
	}
	w.start(t, records...)
	one, two := w.index(t, nil), w.index(t, nil)
	w.caughtUp(t, one)
	two.stop()
	for i := range 100 {
		w.put(t, pod(fmt.Sprintf("n%d/p%d", i%3, i), options{node: "moved"}), gone(fmt.Sprintf("n%d/p%d", (i+100)%3, i+100)))
	}
	three := w.index(t, nil) // the second again, from nothing
	w.caughtUp(t, one)
	w.caughtUp(t, three)
	state := func(r *replica) []string {
		resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", PageSize: 5000})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, o := range resp.GetObjects() {
			out = append(out, o.GetKey()+o.GetUid()+o.GetResourceVersion()+string(o.GetPayload()))
		}
		return out
	}
	if a, b := state(one), state(three); len(a) != 200 || !slices.Equal(a, b) {
		t.Errorf("two indexers hold %d and %d objects and differ", len(a), len(b))
	}
}

func TestHealthAndMetricsTellWhetherCollectionsAreServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.index(t, nil)
	conn, err := rpc.Dial(r.addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	health := func(service string) string {
		resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			return err.Error()
		}
		return resp.GetStatus().String()
	}
	const service = "deltaplane.index.v1.IndexService"
	eventually(t, func() string { // without any log there is nothing to be behind of
		if got := health(service); got != "SERVING" {
			return "without logs: " + got
		}
		return ""
	})
	w.w = w.lead(t, pods, false)
	eventually(t, func() string {
		if got := health(service + "/" + podsName); got != "NOT_SERVING" {
			return "before the sync: " + got
		}
		return ""
	})
	w.put(t, fleet()...)
	w.sync(t)
	eventually(t, func() string {
		if a, b, c := health(service), health(service+"/"+podsName), health(""); a != "SERVING" || b != "SERVING" || c != "SERVING" {
			return fmt.Sprint("after the sync: ", a, b, c)
		}
		return ""
	})
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if m := f.GetMetric()[0]; m.GetGauge() != nil {
			values[f.GetName()] = m.GetGauge().GetValue()
		}
	}
	if values["deltaplane_indexer_objects"] != 4 || values["deltaplane_indexer_synced"] != 1 || values["deltaplane_indexer_payload_bytes"] < 400 {
		t.Errorf("gauges = %v", values)
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := indexer.Config{
		RPC: rpc.ServerConfig{Listen: "0.0.0.0:7441"}, Collections: []string{"nope"}, SnapshotTTL: -1, MaxWatchers: -1, DefaultWait: time.Hour,
	}.Validate()
	for _, want := range []string{"nope", "snapshot ttl", "max watchers", "default wait", "0.0.0.0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults %v do not name %q", err, want)
		}
	}
}

func TestNewLogsAreFoundSoonWhileLittleIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.index(t, func(cfg *indexer.Config) { cfg.DiscoverEvery = time.Hour })
	w.start(t, fleet()...)
	w.caughtUp(t, r)
	// Logs come in flocks: the next one is looked for as eagerly.
	w.lead(t, delta.Collection{Cluster: "dev", Version: "v1", Resource: "nodes"}, false)
	deadline := time.After(20 * time.Second)
	for {
		_, err := r.Count(t.Context(), &indexv1.CountRequest{Collection: "nodes"})
		if rpc.Reason(err) == "COLLECTION_NOT_SYNCED" {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("the second log was not found: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
