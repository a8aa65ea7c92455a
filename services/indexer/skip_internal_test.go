package indexer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// One cluster that was never synced fails a read of all, which names it; by
// skip_unsynced the others are read, and it is named in the answer.
func TestAClusterThatCannotBeReadIsLeftOutOnlyWhereAskedFor(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	ctx := t.Context()
	pods := []podFacts{{namespace: "a", name: "one", node: "n1"}, {namespace: "a", name: "two", node: "n1"}}
	s.know(delta.Collection{Cluster: "eu", Version: "v1", Resource: "pods"})
	_, err := s.list(ctx, &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}, SkipUnsynced: true})
	if !errors.Is(err, errNotSynced) {
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
			err := rpc.Status(call(), rules)
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
