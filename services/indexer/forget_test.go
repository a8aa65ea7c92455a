package indexer_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

func TestACollectionWhoseLogIsDeletedIsForgottenAndFoundAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/1", options{}))
	r := w.index(t, func(c *indexer.Config) { c.ForgetAfter = 50 * time.Millisecond })
	w.caughtUp(t, r)
	watch, err := r.Watch(t.Context(), &indexv1.WatchRequest{Collection: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := w.conn.Remove(t.Context(), pods); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	if rpc.Reason(err) != "COLLECTION_NOT_FOUND" || errors.Is(err, io.EOF) {
		t.Errorf("the watch ended with %v, want COLLECTION_NOT_FOUND", err)
	}
	if _, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "dev/pods.v1", Key: "a/1"}); rpc.Reason(err) != "COLLECTION_NOT_FOUND" {
		t.Errorf("Get() = %v, want COLLECTION_NOT_FOUND", err)
	}
	all, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
	if err != nil || len(all.GetCollections()) != 0 {
		t.Errorf("ListCollections() = %v, %v, want none", all.GetCollections(), err)
	}

	w.w = w.lead(t, pods, true)
	w.put(t, pod("a/2", options{}))
	w.sync(t)
	w.caughtUp(t, r)
	got, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "List() of the log recreated", got.GetObjects(), "a/2")
}
