package view

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/explain"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// planned are evictions of so many pods of one node, and perhaps of others.
type planned struct {
	grpc.ClientConnInterface
	n    int
	more string
}

func (p planned) Invoke(_ context.Context, _ string, in, out any, _ ...grpc.CallOption) error {
	switch out := out.(type) {
	case *queuev1.ListItemsResponse:
		for i := range p.n {
			out.Items = append(out.Items, &queuev1.Item{Key: fmt.Sprintf("default/pod-%d", i)})
		}
		out.NextPageToken = p.more
	case *indexv1.BatchGetResponse:
		for _, key := range in.(*indexv1.BatchGetRequest).GetKeys() { //nolint:forcetypeassert // it has this answer
			out.Objects = append(out.Objects, &indexv1.Object{Key: key, Payload: []byte(`{"spec":{"nodeName":"node-1"}}`)})
		}
	}
	return nil
}

func TestEvictionsThatAreNotShownAreSaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		planned planned
		shown   int
		cut     string
	}{
		{planned{n: mostOfNode}, mostOfNode, ""},
		{planned{n: mostOfNode + 20}, mostOfNode, "node-1 has 20 more"},
		{planned{n: 1, more: "next"}, 1, "more than 1000 are planned"},
	} {
		conn := explain.Part{Conn: c.planned}
		h := NewHub(t.Context(), explain.Parts{Index: conn, Queue: conn, Reflector: conn}, nil, slog.New(slog.DiscardHandler))
		got, cut, err := h.evictions(t.Context(), &clusterNodes{name: "dev", bound: map[string]string{}})
		h.Close()
		if err != nil || len(got["node-1"]) != c.shown || c.cut == "" && cut != "" || !strings.HasPrefix(cut, c.cut) {
			t.Errorf("of %d evictions %d are shown, and %q is said: %v", c.planned.n, len(got["node-1"]), cut, err)
		}
	}
}
