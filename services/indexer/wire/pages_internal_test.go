package wire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Whole objects are sent from where they are stored, and count for the size of a page
// with all of it, as unary answers and on a Query stream.
func TestWholeObjectsAreNotCopiedAndFillPages(t *testing.T) {
	t.Parallel()
	const most = 20_000
	s := serving(t, func(c *testConfig) { c.MaxPageBytes = most })
	var pods []podFacts
	for i := range 60 {
		pods = append(pods, podFacts{namespace: "ns", name: fmt.Sprintf("p%02d", i), node: "n", pad: (1 << 10) + i*37})
	}
	c := s.fill(t, "dev", pods)
	var told []string
	req := &indexv1.ListRequest{Collection: c.Name}
	for pages := 1; ; pages++ {
		o, err := s.list(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		alone := bytes.Clone(o.Bytes())
		o.Wrap(77, queryList)
		parts := o.Parts()
		n := len(parts) / 2
		if len(parts) != 2*n+1 { // what is around them
			t.Fatalf("objects are sent in %d pieces", len(parts))
		}
		whole, resp := &indexv1.QueryResponse{}, &indexv1.ListResponse{}
		if err := errors.Join(proto.Unmarshal(parts.Materialize(), whole), proto.Unmarshal(alone, resp)); err != nil {
			t.Fatal(err)
		}
		if whole.GetTag() != 77 || !proto.Equal(whole.GetList(), resp) || len(resp.GetObjects()) != n {
			t.Fatalf("page %d is %v, alone %v", pages, whole, resp)
		}
		if len(alone) > most+100 { // the revision and the token are beside
			t.Errorf("page %d of %d objects takes %d bytes, at most %d", pages, n, len(alone), most)
		}
		for i, obj := range resp.GetObjects() {
			told = append(told, obj.GetKey())
			want, err := c.Snapshot().Get(obj.GetKey()).Payload()
			if at := parts[2*i+1].ReadOnlyData(); &at[0] != &want[0] {
				t.Errorf("the payload of %s is a copy", obj.GetKey())
			}
			if err != nil || !bytes.Equal(obj.GetPayload(), want) {
				t.Errorf("%s is %d bytes, %v, want %d", obj.GetKey(), len(obj.GetPayload()), err, len(want))
			}
		}
		parts.Free()
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	if len(told) != len(pods) || !slices.IsSorted(told) {
		t.Errorf("told %q", told)
	}
}
