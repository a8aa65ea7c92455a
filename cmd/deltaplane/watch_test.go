package main

import (
	"context"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// brittle is an index whose watches break off, each after some messages.
type brittle struct {
	indexv1.UnimplementedIndexServiceServer
	streams [][]*indexv1.WatchResponse
	asked   []*indexv1.WatchRequest
	n       atomic.Int64
}

func (b *brittle) ListCollections(context.Context, *indexv1.ListCollectionsRequest) (*indexv1.ListCollectionsResponse, error) {
	return &indexv1.ListCollectionsResponse{}, nil
}

func (b *brittle) Watch(r *indexv1.WatchRequest, stream indexv1.IndexService_WatchServer) error {
	n := int(b.n.Add(1)) - 1
	if n >= len(b.streams) {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	b.asked = append(b.asked, r) // streams follow each other
	for _, m := range b.streams[n] {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "the replica ends")
}

func TestAWatchSaysWhenAndHowItWasResumed(t *testing.T) {
	t.Parallel()
	event := func(key string) *indexv1.WatchResponse {
		return &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Events{Events: &indexv1.Events{Events: []*indexv1.Event{{Type: deltav1.DeltaType_DELTA_TYPE_ADDED, Object: &indexv1.Object{Key: key}}}}}}
	}
	at := func(m *indexv1.WatchResponse, sequence uint64, rv string) *indexv1.WatchResponse {
		m.Position = &deltav1.Position{Epoch: 1, Sequence: sequence}
		if rv != "" {
			m.Revision = &deltav1.Revision{Epoch: 1, ResourceVersion: rv}
		}
		return m
	}
	end := func() *indexv1.WatchResponse {
		return &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_InitialStateEnd{InitialStateEnd: &indexv1.InitialStateEnd{}}}
	}
	b := &brittle{streams: [][]*indexv1.WatchResponse{
		{event("a/1")}, // within the state
		{event("a/1"), at(end(), 7, "41")},
		{}, // a replica that says nothing: gRPC itself tries another one
		{at(event("a/2"), 8, "")},
		{{Kind: &indexv1.WatchResponse_Gap{Gap: &indexv1.Gap{Reason: "epoch changed"}}}, at(end(), 3, "50"), {Kind: &indexv1.WatchResponse_Gap{Gap: &indexv1.Gap{Reason: "it was purged"}}}, at(end(), 9, "60")},
		{at(event("a/3"), 10, "61")},
	}}
	addr := servedAt(t, func(s *grpc.Server) { indexv1.RegisterIndexServiceServer(s, b) })
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, errs buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"watch", "pods", "-o", "keys", "--index-url", addr}, streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	}()
	until(t, func() bool { return b.n.Load() > int64(len(b.streams)) })
	stop()
	if code := <-done; code != cli.ExitOK {
		t.Errorf("exit %d", code)
	}
	got := regexp.MustCompile(`after [0-9.]+m?s`).ReplaceAllString(errs.String(), "after TIME")
	const broken = "watch interrupted, resuming: the replica ends\n"
	if want := broken +
		"watch resumed after TIME: it broke off within the state; the whole state follows\n" + broken +
		"watch resumed after TIME at revision 41: the changes since follow\n" + broken +
		"watch resumed after TIME: history was lost: epoch changed; the whole state follows\n" +
		"history was lost: it was purged; the whole state follows\n" + broken +
		"watch resumed after TIME at revision 60: the changes since follow\n" + broken; got != want {
		t.Errorf("it said\n%s\nwant\n%s", got, want)
	}
	if out.String() != "ADDED a/1\nADDED a/1\nADDED a/2\nADDED a/3\n" || b.asked[3].GetResume().GetSequence() != 7 {
		t.Errorf("it showed %q", out.String())
	}
}
