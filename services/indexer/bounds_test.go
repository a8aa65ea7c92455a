package indexer_test

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// changed is a pod at a version, in a log that is complete up to a watermark.
func changed(key string, rv, watermark int) delta.Record {
	r := pod(key, options{node: "n1", phase: "Running"})
	r.RV, r.Watermark = strconv.Itoa(rv), strconv.Itoa(watermark)
	r.Hash = delta.Hash(r.Payload)
	return r
}

// between makes a log that is complete up to 6 and holds a change of 9, and a replica
// that has applied it.
func between(t *testing.T, w *world) *replica {
	t.Helper()
	w.start(t, fleet()...) // synced at 5
	r := w.index(t, nil)
	w.caughtUp(t, r)
	write(t, w.w, changed("a/one", 9, 6))
	w.rv = 6
	w.caughtUp(t, r)
	w.rv = 9
	return r
}

type stated interface {
	GetRevision() *deltav1.Revision
	GetUpper() *deltav1.Revision
}

func wantBounds(t testing.TB, what string, got stated, revision, upper string) {
	t.Helper()
	if got.GetRevision().GetResourceVersion() != revision || got.GetUpper().GetResourceVersion() != upper ||
		got.GetUpper().GetEpoch() != got.GetRevision().GetEpoch() {
		t.Errorf("%s is between %v and %v, want %s and %s", what, got.GetRevision(), got.GetUpper(), revision, upper)
	}
}

func TestEveryAnswerStatesHowFarItGoesBeyondItsRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := between(t, w)
	ctx := t.Context()
	answers := map[string]func() (stated, error){
		"Get": func() (stated, error) { return r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a/one"}) },
		"BatchGet": func() (stated, error) {
			return r.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: "pods", Keys: []string{"a/one"}})
		},
		"List": func() (stated, error) { return r.List(ctx, &indexv1.ListRequest{Collection: "pods"}) },
		"ByIndex": func() (stated, error) {
			return r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}})
		},
		"Index": func() (stated, error) {
			return r.Index(ctx, &indexv1.IndexRequest{Collection: "pods", Index: "node", Object: []byte(`{"metadata":{},"spec":{"nodeName":"n1"}}`)})
		},
		"IndexKeys": func() (stated, error) {
			return r.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: "pods", Index: "node", Value: "n1"})
		},
		"values": func() (stated, error) {
			return r.ListIndexFuncValues(ctx, &indexv1.ListIndexFuncValuesRequest{Collection: "pods", Index: "node"})
		},
		"Count":    func() (stated, error) { return r.Count(ctx, &indexv1.CountRequest{Collection: "pods"}) },
		"indexers": func() (stated, error) { return r.ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: "pods"}) },
		"clusters": func() (stated, error) {
			resp, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}})
			if err != nil || len(resp.GetRevisions()) != 1 {
				t.Fatalf("List over clusters = %v, %v", resp, err)
			}
			return resp.GetRevisions()[0], nil
		},
		"collections": func() (stated, error) {
			resp, err := r.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
			return resp.GetCollections()[0], err
		},
		"WaitForRevision": func() (stated, error) {
			resp, err := r.WaitForRevision(ctx, &indexv1.WaitForRevisionRequest{Revisions: []*deltav1.CollectionRevision{{Collection: "pods"}}})
			return resp.GetRevisions()[0], err
		},
	}
	for name, ask := range answers {
		got, err := ask()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantBounds(t, name, got, "6", "9")
	}
	_, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a/none"})
	if meta := rpc.Info(err).GetMetadata(); meta["resource_version"] != "6" || meta["upper"] != "9" {
		t.Errorf("a key that is not there: %v", meta)
	}
	write(t, w.w, changed("b/two", 7, 9))
	w.caughtUp(t, r)
	for name, ask := range answers {
		got, err := ask()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantBounds(t, name, got, "9", "9")
	}
}

func TestAnExactReadWaitsForAStateThatIsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := between(t, w)
	ctx := t.Context()
	exact := func(wait time.Duration, least int) *indexv1.Consistency {
		c := &indexv1.Consistency{Exact: true, Timeout: durationpb.New(wait)}
		if least > 0 {
			c.AtLeast = &deltav1.Revision{ResourceVersion: strconv.Itoa(least)}
		}
		return c
	}
	_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Consistency: exact(50*time.Millisecond, 0)})
	wantStatus(t, "an exact List", err, codes.DeadlineExceeded, "STATE_NOT_EXACT", "")
	if meta := rpc.Info(err).GetMetadata(); meta["resource_version"] != "6" || meta["upper"] != "9" || meta["collection"] != podsName {
		t.Errorf("the error says %v", meta)
	}
	_, err = r.Count(ctx, &indexv1.CountRequest{Collection: "pods.v1", Clusters: []string{"*"}, Consistency: exact(50*time.Millisecond, 0)})
	wantStatus(t, "an exact Count over clusters", err, codes.DeadlineExceeded, "STATE_NOT_EXACT", "")
	_, err = r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: exact(50*time.Millisecond, 8)})
	wantStatus(t, "an exact Get of a later revision", err, codes.DeadlineExceeded, "REVISION_NOT_REACHED", "")
	done := make(chan error, 1)
	go func() {
		resp, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Consistency: exact(30*time.Second, 0)})
		if err == nil {
			wantBounds(t, "an exact List", resp, "9", "9")
		}
		done <- err
	}()
	write(t, w.w, changed("b/two", 7, 9))
	if err := <-done; err != nil {
		t.Errorf("an exact List that waits: %v", err)
	}
	stream, err := r.Watch(ctx, &indexv1.WatchRequest{Collection: "pods", Consistency: exact(0, 0)})
	if err == nil {
		_, err = stream.Recv()
	}
	wantStatus(t, "an exact Watch", err, codes.InvalidArgument, "INVALID_ARGUMENT", "consistency.exact")
}

// A page that goes on in a new snapshot, on any replica, is not older than those before it.
func TestAPageThatGoesOnElsewhereIsNotOlderThanThoseBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := between(t, w)
	second := w.index(t, nil)
	ctx := t.Context()
	for name, req := range map[string]*indexv1.ListRequest{
		"one": {Collection: podsName, PageSize: 1}, "clusters": {Collection: "pods.v1", Clusters: []string{"*"}, PageSize: 1},
	} {
		page, err := first.List(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		req.PageToken, req.Consistency = page.GetNextPageToken(), &indexv1.Consistency{Timeout: durationpb.New(50 * time.Millisecond)}
		eventually(t, func() string { // until the other has the collection
			_, err = second.List(ctx, req)
			if rpc.Reason(err) != "SNAPSHOT_GONE" {
				return err.Error()
			}
			return ""
		})
		req.PageToken = rpc.Info(err).GetMetadata()["page_token"]
		_, err = second.List(ctx, req)
		wantStatus(t, name+": a page of a replica that is behind", err, codes.DeadlineExceeded, "REVISION_NOT_REACHED", "")
		defer func() {
			page, err := second.List(ctx, req)
			if err != nil || len(page.GetObjects()) != 1 || page.GetObjects()[0].GetKey() != "a/two" {
				t.Errorf("%s: a page of a replica that has caught up: %v, %v", name, page, err)
			}
		}()
	}
	write(t, w.w, changed("b/two", 7, 9))
	w.caughtUp(t, second)
}

func TestAWatchStatesHowFarItHasToldBeyondItsRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := between(t, w)
	stream, err := r.Watch(t.Context(), &indexv1.WatchRequest{Collection: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *indexv1.WatchResponse {
		t.Helper()
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := next()
	for resp.GetInitialStateEnd() == nil {
		if resp.GetRevision() != nil || resp.GetUpper().GetResourceVersion() != "9" {
			t.Errorf("within the state revision %v is claimed, and upper %v", resp.GetRevision(), resp.GetUpper())
		}
		resp = next()
	}
	wantBounds(t, "the end of the initial state", resp, "6", "9")
	write(t, w.w, changed("b/two", 7, 9))
	wantBounds(t, "the change that makes it exact", next(), "9", "9")
}

// What is restored from a file goes as far beyond its revision as it did.
func TestACheckpointKeepsTheUpperBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	w.start(t, fleet()...)
	r := w.index(t, keeping(dir))
	w.caughtUp(t, r)
	write(t, w.w, changed("a/one", 9, 6))
	w.rv = 6
	w.caughtUp(t, r)
	r.stop()
	r = w.index(t, keeping(dir))
	w.caughtUp(t, r)
	resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	wantBounds(t, "a List behind a restart", resp, "6", "9")
	collections, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
	if err != nil || !collections.GetCollections()[0].GetWarmStart() {
		t.Errorf("it was not read from its file: %v, %v", collections, err)
	}
}
