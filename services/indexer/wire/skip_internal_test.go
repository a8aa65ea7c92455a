package wire

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// One cluster that was never synced fails a read of all, which names it; by
// skip_unsynced the others are read, and it is named in the answer.
func TestAClusterThatCannotBeReadIsLeftOutOnlyWhereAskedFor(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	ctx := t.Context()
	pods := []podFacts{{namespace: "a", name: "one", node: "n1"}, {namespace: "a", name: "two", node: "n1"}}
	s.collections.Know(delta.Collection{Cluster: "eu", Version: "v1", Resource: "pods"})
	_, err := s.list(ctx, &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}, SkipUnsynced: true})
	if !errors.Is(err, fault.ErrNotSynced) {
		t.Errorf("with nothing that can be read: %v", err)
	}
	s.fill(t, "asia", pods)
	s.fill(t, "us", pods)
	const eu = "eu/pods.v1"
	for _, clusters := range [][]string{{"*"}, {"asia", "eu", "us"}} {
		for name, call := range map[string]func() error{
			"List": func() error {
				_, err := s.list(ctx, &indexv1.ListRequest{Collection: "pods.v1", Clusters: clusters})
				return err
			},
			"ByIndex": func() error {
				_, err := s.byIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods.v1", Clusters: clusters, Index: "node", Values: []string{"n1"}})
				return err
			},
			"Count": func() error {
				_, err := s.Count(ctx, &indexv1.CountRequest{Collection: "pods.v1", Clusters: clusters})
				return err
			},
		} {
			err := rpc.Status(call(), fault.Rules)
			if info := rpc.Info(err); info.GetReason() != "COLLECTION_NOT_SYNCED" || info.GetMetadata()["collection"] != eu || !strings.Contains(err.Error(), eu) {
				t.Errorf("%s of %q: %v", name, clusters, err)
			}
		}
		var keys []string
		list := &indexv1.ListRequest{Collection: "pods.v1", Clusters: clusters, SkipUnsynced: true, PageSize: 3}
		by := &indexv1.ByIndexRequest{Collection: "pods.v1", Clusters: clusters, Index: "node", Values: []string{"n1"}, SkipUnsynced: true, PageSize: 3}
		for pages := 1; ; pages++ {
			o, err := s.list(ctx, list)
			resp := decodeAnswer(t, o, err, &indexv1.ListResponse{})
			o, err = s.byIndex(ctx, by)
			same := decodeAnswer(t, o, err, &indexv1.ByIndexResponse{})
			if !slices.Equal(resp.GetLeftOut(), []string{eu}) || !slices.Equal(same.GetLeftOut(), []string{eu}) || len(resp.GetRevisions()) != 2 {
				t.Fatalf("page %d of %q: %v, by the index %v", pages, clusters, resp, same)
			}
			for i, obj := range resp.GetObjects() {
				keys = append(keys, obj.GetCollection()+" "+obj.GetKey())
				if got := same.GetObjects()[i]; got.GetKey() != obj.GetKey() || got.GetCollection() != obj.GetCollection() {
					t.Errorf("object %d by the index is %v", i, got)
				}
			}
			list.PageToken, by.PageToken = resp.GetNextPageToken(), same.GetNextPageToken()
			if list.GetPageToken() == "" {
				break
			}
		}
		if want := []string{"asia/pods.v1 a/one", "asia/pods.v1 a/two", "us/pods.v1 a/one", "us/pods.v1 a/two"}; !slices.Equal(keys, want) {
			t.Errorf("%q: %q, want %q", clusters, keys, want)
		}
	}
	_, err = s.list(ctx, &indexv1.ListRequest{Collection: "us/pods.v1", SkipUnsynced: true})
	if rpc.Violations(rpc.Status(err, nil))["skip_unsynced"] == "" {
		t.Errorf("of one collection: %v", err)
	}
}

// A cluster that comes while every one is listed is not on the pages that follow,
// and named there only where some may be left out.
func TestAClusterThatCameMeanwhileIsLeftOutOnlyWhereAskedFor(t *testing.T) {
	t.Parallel()
	for _, skip := range []bool{false, true} {
		s := serving(t, nil)
		s.fill(t, "asia", []podFacts{{namespace: "a", name: "one"}, {namespace: "a", name: "two"}})
		req := &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}, PageSize: 1, SkipUnsynced: skip}
		o, err := s.list(t.Context(), req)
		resp := decodeAnswer(t, o, err, &indexv1.ListResponse{})
		if len(resp.GetLeftOut()) > 0 {
			t.Errorf("the first page leaves out %q", resp.GetLeftOut())
		}
		s.fill(t, "eu", []podFacts{{namespace: "a", name: "one"}})
		req.PageToken = resp.GetNextPageToken()
		o, err = s.list(t.Context(), req)
		resp = decodeAnswer(t, o, err, &indexv1.ListResponse{})
		if named := slices.Equal(resp.GetLeftOut(), []string{"eu/pods.v1"}); named != skip || !skip && len(resp.GetLeftOut()) > 0 || len(resp.GetRevisions()) != 1 {
			t.Errorf("with skip_unsynced %v, the second page is %v", skip, resp)
		}
	}
}

// A cluster that has to be synced again while it is listed is left out of the
// pages that follow, and named there, unless earlier ones have all of it. Without
// skip_unsynced it fails them.
func TestAClusterThatMustBeSyncedAgainIsLeftOutOfTheFollowingPages(t *testing.T) {
	t.Parallel()
	pods := []podFacts{{namespace: "a", name: "one", node: "n1"}, {namespace: "a", name: "two", node: "n1"}}
	for _, run := range []struct {
		lost      string // from the second page on
		skip      bool
		want      []string // is told in all; nil when the second page fails
		out       []string // is left out of the second page and those behind it
		remaining int64    // behind the second page
	}{
		{"asia", true, []string{"asia one", "eu one", "eu two", "us one", "us two"}, []string{"asia/pods.v1"}, 3},
		{"eu", true, []string{"asia one", "asia two", "us one", "us two"}, []string{"eu/pods.v1"}, 2},
		{"us", true, []string{"asia one", "asia two", "eu one", "eu two"}, []string{"us/pods.v1"}, 2},
		{"eu us", true, []string{"asia one", "asia two"}, []string{"eu/pods.v1", "us/pods.v1"}, 0},
		{"eu", false, nil, nil, 0},
	} {
		s := serving(t, nil)
		all := map[string]*follow.Collection{}
		for _, cluster := range []string{"asia", "eu", "us"} {
			all[cluster] = s.fill(t, cluster, pods)
		}
		list := &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}, SkipUnsynced: run.skip, PageSize: 1}
		by := &indexv1.ByIndexRequest{Collection: "pods.v1", Clusters: []string{"asia", "eu", "us"}, Index: "node", Values: []string{"n1"}, SkipUnsynced: run.skip, PageSize: 1}
		var told []string
		for page := 1; ; page++ {
			o, err := s.list(t.Context(), list)
			o2, err2 := s.byIndex(t.Context(), by)
			if run.want == nil && page == 2 {
				if !errors.Is(err, fault.ErrNotSynced) || !errors.Is(err2, fault.ErrNotSynced) {
					t.Errorf("without skip_unsynced: %v, by the index %v", err, err2)
				}
				break
			}
			resp := decodeAnswer(t, o, err, &indexv1.ListResponse{})
			same := decodeAnswer(t, o2, err2, &indexv1.ByIndexResponse{})
			for _, obj := range resp.GetObjects() {
				told = append(told, strings.TrimSuffix(obj.GetCollection(), "/pods.v1")+" "+strings.TrimPrefix(obj.GetKey(), "a/"))
			}
			if page == 1 {
				for cluster := range strings.FieldsSeq(run.lost) {
					all[cluster].Store().Apply(store.Batch{State: &store.State{Position: delta.Position{Epoch: 2}}}, time.Now())
				}
			} else if !slices.Equal(resp.GetLeftOut(), run.out) || !slices.Equal(same.GetLeftOut(), run.out) || len(resp.GetRevisions()) != 3-len(run.out) {
				t.Errorf("%q: page %d is %v, by the index %v, want %q left out", run.lost, page, resp, same, run.out)
			}
			if page == 2 && resp.GetRemaining() != run.remaining {
				t.Errorf("%q: %d objects remain behind the second page, want %d", run.lost, resp.GetRemaining(), run.remaining)
			}
			if page == 2 { // what is synced again is not started over in the middle
				for cluster := range strings.FieldsSeq(run.lost) {
					s.apply(t, all[cluster], pods)
				}
			}
			if !slices.EqualFunc(resp.GetObjects(), same.GetObjects(), func(a, b *indexv1.Object) bool {
				return a.GetCollection() == b.GetCollection() && a.GetKey() == b.GetKey()
			}) {
				t.Errorf("%q: page %d is %v, by the index %v", run.lost, page, resp, same)
			}
			if list.PageToken, by.PageToken = resp.GetNextPageToken(), same.GetNextPageToken(); list.GetPageToken() == "" {
				break
			}
		}
		if run.want != nil && !slices.Equal(told, run.want) {
			t.Errorf("%q: told %q, want %q", run.lost, told, run.want)
		}
	}
}

func TestAClusterThatMustBeSyncedAgainIsNamedOnlyWhileItsObjectsAreMissing(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	pods := []podFacts{{namespace: "a", name: "one"}, {namespace: "a", name: "two"}}
	asia, eu := s.fill(t, "asia", pods), s.fill(t, "eu", pods)
	lose := func(c *follow.Collection) {
		c.Store().Apply(store.Batch{State: &store.State{Position: delta.Position{Epoch: 2}}}, time.Now())
	}
	req := &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}, SkipUnsynced: true, PageSize: 3}
	o, err := s.list(t.Context(), req) // all of asia, and one of eu
	req.PageToken = decodeAnswer(t, o, err, &indexv1.ListResponse{}).GetNextPageToken()
	lose(asia)
	o, err = s.list(t.Context(), req)
	resp := decodeAnswer(t, o, err, &indexv1.ListResponse{})
	if len(resp.GetLeftOut()) > 0 || len(resp.GetObjects()) != 1 || len(resp.GetRevisions()) != 2 || resp.GetNextPageToken() != "" {
		t.Errorf("with a cluster lost that was told: %v, want the last object and nothing left out", resp)
	}
	lose(eu)
	o, err = s.list(t.Context(), req)
	resp = decodeAnswer(t, o, err, &indexv1.ListResponse{})
	if !slices.Equal(resp.GetLeftOut(), []string{"eu/pods.v1"}) || len(resp.GetObjects()) > 0 || resp.GetNextPageToken() != "" {
		t.Errorf("with the other lost, too: %v, want an end that leaves it out", resp)
	}
	req.PageToken = "" // and one that has nothing to keep
	if _, err := s.list(t.Context(), req); !errors.Is(err, fault.ErrNotSynced) {
		t.Errorf("with none left: %v", err)
	}
}

// Index projects as the other reads do.
func TestIndexTakesAFieldMask(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	s.fill(t, "eu", []podFacts{{namespace: "a", name: "one", node: "n1", phase: "Running"}})
	req := &indexv1.IndexRequest{
		Collection: "pods", Index: "node", Object: []byte(`{"metadata":{"name":"like"},"spec":{"nodeName":"n1"}}`),
		FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"status.phase"}},
	}
	o, err := s.byExample(t.Context(), req)
	objs := decodeAnswer(t, o, err, &indexv1.IndexResponse{}).GetObjects()
	if len(objs) != 1 || string(objs[0].GetPayload()) != `{"status":{"phase":"Running"}}` {
		t.Errorf("objects = %v", objs)
	}
	req.View = indexv1.View_VIEW_KEYS
	if _, err := s.byExample(t.Context(), req); status.Code(rpc.Status(err, nil)) != codes.InvalidArgument {
		t.Errorf("with a view: %v", err)
	}
}
