package controllers

import (
	"context"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/deltaplane/deltaplane/client"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// wire answers lists and adds, or refuses the calls of one method.
type wire struct {
	refuse string
	listed *indexv1.ListRequest
	added  []*queuev1.AddItem
}

func (w *wire) Invoke(_ context.Context, method string, req, resp any, _ ...grpc.CallOption) error {
	if method == w.refuse {
		return status.Error(codes.Unavailable, "away")
	}
	switch req := req.(type) {
	case *indexv1.ListRequest:
		w.listed = req
		proto.Merge(resp.(proto.Message), &indexv1.ListResponse{
			Objects:  []*indexv1.Object{{Key: "ns/a"}, {Key: "ns/b"}},
			Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "40"},
		})
	case *queuev1.AddRequest:
		w.added = append(w.added, req.GetItems()...)
	}
	return nil
}

func (w *wire) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

func TestAnOrphansKeySucceedsOnlyWhenItsJobsAreWoken(t *testing.T) {
	t.Parallel()
	const pods, jobs = "dev/pods.v1", "dev/jobs.v1.batch"
	seen := client.Revision{Epoch: 3, RV: "50"}
	item := client.Item{Key: job.OrphansKey("ns"), Barrier: client.Barrier{pods: seen}}
	for _, refuse := range []string{"", indexv1.IndexService_List_FullMethodName, queuev1.QueueService_Add_FullMethodName} {
		w := &wire{refuse: refuse}
		a := &jobAdapter{reads: &reads{index: client.NewIndex(w), log: slog.New(slog.DiscardHandler)}, queue: client.NewQueue(w, "dev/job", ""), jobs: jobs, pods: pods}
		res, err := a.Reconcile(t.Context(), item)
		if refuse == indexv1.IndexService_List_FullMethodName {
			if err != nil || res.Outcome != client.OutcomeRelease || res.After != awayRetry {
				t.Errorf("the index is away: %+v, %v; want the key given back", res, err)
			}
			continue
		}
		if refuse != "" {
			if status.Code(err) != codes.Unavailable || res.Outcome != 0 {
				t.Errorf("%s fails: %+v, %v; want the error, so that the key is tried again", refuse, res, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if w.listed.GetNamespace() != "ns" || w.listed.GetFieldSelector() != "spec.manualSelector=true" {
			t.Errorf("asked for %v", w.listed)
		}
		barrier := []*deltav1.CollectionRevision{{Collection: pods, Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "50"}}}
		want := []*queuev1.AddItem{{Key: "ns/a", Barrier: barrier}, {Key: "ns/b", Barrier: barrier}}
		if diff := cmp.Diff(want, w.added, protocmp.Transform()); diff != "" {
			t.Errorf("woken (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(client.Reading{jobs: {Revision: client.Revision{Epoch: 3, RV: "40"}, Upper: client.Revision{Epoch: 3, RV: "40"}}}, res.ReadAt); diff != "" {
			t.Errorf("read at (-want +got):\n%s", diff)
		}
	}
}
