package view

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/explain"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// many is an index and a queue service with many collections, each with one object, and queues.
type many struct {
	grpc.ClientConnInterface
	n       int
	objects int // of each collection besides
}

func (m many) Invoke(_ context.Context, _ string, in, out any, _ ...grpc.CallOption) error {
	switch out := out.(type) {
	case *indexv1.ListCollectionsResponse:
		for i := range m.n {
			out.Collections = append(out.Collections, &indexv1.CollectionStatus{
				Collection: fmt.Sprintf("dev/kind%04d.v1", i), Resource: fmt.Sprintf("kind%04d", i), Objects: int64(1 + i),
			})
		}
	case *indexv1.ListResponse:
		out.Objects = []*indexv1.Object{{Key: "default/needle"}}
		for i := range m.objects {
			out.Objects = append(out.Objects, &indexv1.Object{Key: fmt.Sprintf("default/needle-%d", i)})
		}
	case *queuev1.ListQueuesResponse:
		for i := range m.n {
			out.Queues = append(out.Queues, &queuev1.QueueStatus{Config: &queuev1.QueueConfig{Name: fmt.Sprintf("dev/queue%04d", i)}})
		}
	case *queuev1.InspectResponse:
		if in.(*queuev1.InspectRequest).GetKey() == "needle" { //nolint:forcetypeassert // it has this answer
			out.Item = &queuev1.Item{State: queuev1.State_STATE_READY}
		}
	}
	return nil
}

func TestASearchSaysThatThereIsMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of   many
		text string
		more bool
	}{
		"as many queues as are shown":       {many{n: mostFound}, "dev/queue", false},
		"one queue more":                    {many{n: mostFound + 1}, "dev/queue", true},
		"as many objects of a collection":   {many{n: 1, objects: mostFound - 1}, "kind0000 needle", false},
		"many more objects of a collection": {many{n: 1, objects: 4 * mostFound}, "kind0000 needle", true},
	} {
		conn := explain.Part{Conn: c.of}
		h := NewHub(t.Context(), explain.Parts{Index: conn, Queue: conn, Reflector: conn}, nil, slog.New(slog.DiscardHandler))
		got, err := h.Search(t.Context(), c.text)
		if h.Close(); err != nil {
			t.Fatal(err)
		}
		if len(got.GetFound()) != mostFound || got.GetMore() != c.more {
			t.Errorf("%s: %d are found, and more: %v", name, len(got.GetFound()), got.GetMore())
		}
	}
}

func TestASearchComparesAllNamesAndSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	const n = mostSearched + 50
	conn := explain.Part{Conn: many{n: n}}
	h := NewHub(t.Context(), explain.Parts{Index: conn, Queue: conn, Reflector: conn}, nil, slog.New(slog.DiscardHandler))
	defer h.Close()
	for _, c := range []struct {
		text   string
		want   *consolev1.Found
		silent []string
	}{
		{"kind0249", &consolev1.Found{Kind: consolev1.FoundKind_FOUND_KIND_COLLECTION, Collection: "dev/kind0249.v1"}, []string{"50 collections", "50 queues"}},
		{"queue0249", &consolev1.Found{Kind: consolev1.FoundKind_FOUND_KIND_QUEUE, Queue: "dev/queue0249"}, []string{"50 collections", "50 queues"}},
		{"kind0249 needle", &consolev1.Found{Kind: consolev1.FoundKind_FOUND_KIND_OBJECT, Collection: "dev/kind0249.v1", Key: "default/needle"}, nil},
	} {
		got, err := h.Search(t.Context(), c.text)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(got.GetFound(), func(f *consolev1.Found) bool { return f.String() == c.want.String() }) {
			t.Errorf("%q finds %v, want %v", c.text, got.GetFound(), c.want)
		}
		var silent []string
		for _, s := range got.GetSilent() {
			silent = append(silent, s.GetPart())
		}
		if slices.Sort(silent); !slices.Equal(silent, c.silent) {
			t.Errorf("%q says that these were not searched: %v, want %v", c.text, silent, c.silent)
		}
	}
}
