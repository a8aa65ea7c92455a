package client_test

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/client"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// laggard is an index whose watches lag twice.
type laggard struct {
	indexv1.UnimplementedIndexServiceServer
	since time.Time
}

func (l *laggard) Watch(_ *indexv1.WatchRequest, s grpc.ServerStreamingServer[indexv1.WatchResponse]) error {
	begins := &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Lagging{Lagging: &indexv1.Lagging{FrozenSince: timestamppb.New(l.since)}}}
	ends := &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Lagging{Lagging: &indexv1.Lagging{}}}
	for _, resp := range []*indexv1.WatchResponse{
		{Kind: &indexv1.WatchResponse_InitialStateEnd{InitialStateEnd: &indexv1.InitialStateEnd{}}, Position: &deltav1.Position{Epoch: 1, Sequence: 1}},
		begins, ends, begins,
		{Kind: &indexv1.WatchResponse_Bookmark{Bookmark: &indexv1.Bookmark{}}, Position: &deltav1.Position{Epoch: 1, Sequence: 2}},
	} {
		if err := s.Send(resp); err != nil {
			return err
		}
	}
	return nil // the next stream may be to a replica that does not lag
}

func TestAWatchTellsThatItsCollectionLagsAndThatItDoesNoMore(t *testing.T) {
	since := time.Now().Add(-time.Minute).UTC()
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, &laggard{since: since}) })
	defer stop()
	var told []time.Time
	var types []client.EventType
	o := client.WatchOptions{OnLagging: func(at time.Time) { told = append(told, at) }}
	for e, err := range client.NewIndex(conn).Watch(t.Context(), "pods", o) {
		if err != nil {
			t.Fatal(err)
		}
		if types = append(types, e.Type); e.Type == client.EventBookmark {
			break
		}
	}
	if len(types) != 2 || types[0] != client.EventInitialEnd {
		t.Errorf("events %v, want the end of the state and a bookmark", types)
	}
	if len(told) != 4 || !told[0].Equal(since) || !told[1].IsZero() || !told[2].Equal(since) || !told[3].IsZero() {
		t.Errorf("told %v, want %v and the zero time twice", told, since)
	}
}
