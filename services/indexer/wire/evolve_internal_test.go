package wire

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// As docs/evolution.md says of a later client, an unknown field is ignored and an unknown value of
// an enum is refused.
func TestUnknownFieldsAreIgnoredAndUnknownValuesRefused(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	s.fill(t, "eu", []podFacts{{namespace: "a", name: "one", node: "n1"}})
	want := &indexv1.GetRequest{Collection: "eu/pods.v1", Key: "a/one"}
	data, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendString(protowire.AppendTag(data, 1000, protowire.BytesType), "of a later client")
	r := newGetRequest()
	if err := r.decode(data); err != nil {
		t.Fatalf("a request with an unknown field: %v", err)
	}
	if got := r.message(); got.GetCollection() != want.GetCollection() || got.GetKey() != want.GetKey() {
		t.Errorf("it is read as %v", got)
	}
	_, err = s.list(t.Context(), &indexv1.ListRequest{Collection: "eu/pods.v1", View: 99})
	if err := rpc.Status(err, fault.Rules); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown view: %v", err)
	}
}
