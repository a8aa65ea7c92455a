package main

import (
	"context"
	"regexp"
	"slices"
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
		{Collection: "dev/nodes.v1", Synced: true, Dropped: &indexv1.DroppedFields{Paths: []string{"metadata.managedFields", "status.images"}}},
		{Collection: "dev/secrets.v1", Lagging: true, Dropped: &indexv1.DroppedFields{MetadataOnly: true}},
		{Collection: "dev/jobs.v1.batch", Synced: true, Dropped: &indexv1.DroppedFields{Paths: []string{"metadata.managedFields"}}},
	}}, nil
}

func TestStatusSaysWhatObjectsLack(t *testing.T) {
	t.Parallel()
	addr := servedAt(t, func(s *grpc.Server) { indexv1.RegisterIndexServiceServer(s, frozenIndex{}) })
	out, _, _ := command(t.Context(), "", "status", "--index-url", addr, "--reflector-url", addr, "--queue-url", addr)
	rows := map[string][]string{}
	at := 0 // column of what is lacking
	for line := range strings.Lines(out) {
		cells := regexp.MustCompile(` {3,}`).Split(strings.TrimSpace(line), -1)
		if cells[0] == "INDEX" {
			at = slices.Index(cells, "LACKS")
		}
		rows[cells[0]] = cells
	}
	for name, want := range map[string]string{"dev/pods.v1": "?", "dev/nodes.v1": "status.images", "dev/secrets.v1": "all but metadata", "dev/jobs.v1.batch": "-"} {
		if row := rows[name]; at <= 0 || len(row) <= at || row[at] != want {
			t.Errorf("%s: %q, want %q in column %d", name, row, want, at)
		}
	}
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
