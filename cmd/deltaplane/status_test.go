package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// frozenIndex has collections in each state, and nothing else runs beside it.
type frozenIndex struct {
	indexv1.UnimplementedIndexServiceServer
}

func (frozenIndex) ListCollections(context.Context, *indexv1.ListCollectionsRequest) (*indexv1.ListCollectionsResponse, error) {
	return &indexv1.ListCollectionsResponse{Collections: []*indexv1.CollectionStatus{
		{Collection: "dev/pods.v1", Synced: true, Lagging: true, Stale: true},
		{Collection: "dev/nodes.v1", Synced: true},
		{Collection: "dev/secrets.v1", Lagging: true},
	}}, nil
}

func TestStatusSaysThatACollectionLags(t *testing.T) {
	t.Parallel()
	addr := servedAt(t, func(s *grpc.Server) { indexv1.RegisterIndexServiceServer(s, frozenIndex{}) })
	out, _, _ := command(t.Context(), "", "status", "--index-url", addr, "--reflector-url", addr, "--queue-url", addr)
	for name, want := range map[string]string{"dev/pods.v1": "LAGGING", "dev/nodes.v1": "serving", "dev/secrets.v1": "not synced"} {
		found := false
		for line := range strings.Lines(out) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				if found = true; !strings.HasPrefix(strings.TrimSpace(rest), want+" ") {
					t.Errorf("%s: %q, want the state %s", name, line, want)
				}
			}
		}
		if !found {
			t.Errorf("%s is missing in:\n%s", name, out)
		}
	}
}
