package message

import (
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/internal/fieldmask"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// A path that no object can have is refused by name; whatever a name may hold
// can be asked for.
func TestPathsOfFieldMasksAreRefusedByName(t *testing.T) {
	t.Parallel()
	for path, why := range map[string]string{
		"": "a name is empty", ".": "a name is empty", "a.": "a name is empty", ".a": "a name is empty", "a..b": "a name is empty", "``": "a name is empty",
		"a.``.b": "a name is empty", "`a": "does not end", "a.`b.c": "does not end", "`a`b": "does not end", "a`b`": "'`' is not part",
		"spec.containers[0].name": "'[' is not part", "spec.containers[*]": "'[' is not part", "a]": "']' is not part", "a.*": "'*' is not part",
		"{.metadata.name}": "'{' is not part", "a}": "'}' is not part", "a(b": "'(' is not part", "$.metadata": "'$' is not part",
		"metadata.name,status": "',' is not part", "a b": "' ' is not part", "a\tb": "'\\t' is not part", "/metadata/name": "joined by dots",
		"a." + strings.Repeat("x", fieldmask.MaxPath): "longer than", "kind.x": "kind has no fields", "metadata.name.first": "metadata.name has no fields",
	} {
		_, err := Project(indexv1.View_VIEW_UNSPECIFIED, &fieldmaskpb.FieldMask{Paths: []string{"status.phase", path}})
		st := rpc.Status(err, fault.Rules)
		if got := rpc.Violations(st)["field_mask.paths[1]"]; rpc.Code(st) != codes.InvalidArgument || !strings.Contains(got, why) || path != "" && !strings.Contains(got, strconv.Quote(path)[1:min(10, len(path))]) {
			t.Errorf("%q: %v, violation %q, want one of paths[1] that tells it and says %q", path, err, got, why)
		}
	}
	payload := []byte(`{"apiVersion":"v1","a.b":{"c d":1,"x":2},"$ref":3,"metadata":{"name":"n","labels":{"app/x":"y","k8s.io/z":"w"}},"list":[{"name":"one","v":1},{"v":2},7],"text":"t"}`)
	for path, want := range map[string]string{
		"`a.b`": `{"a.b":{"c d":1,"x":2}}`, "`a.b`.`c d`": `{"a.b":{"c d":1}}`, "$ref": `{"$ref":3}`, "metadata.labels.app/x": `{"metadata":{"labels":{"app/x":"y"}}}`,
		"metadata.labels.`k8s.io/z`": `{"metadata":{"labels":{"k8s.io/z":"w"}}}`, "list.name": `{"list":[{"name":"one"},{},null]}`,
		"none": `{}`, "none.deeper": `{}`, "text.deeper": `{}`, "metadata.none": `{"metadata":{}}`, "list.v.deeper": `{"list":[{},{},null]}`,
	} {
		p, err := Project(indexv1.View_VIEW_UNSPECIFIED, &fieldmaskpb.FieldMask{Paths: []string{path}})
		if err != nil {
			t.Errorf("%q: %v", path, err)
			continue
		}
		if got := string(p.Payload(payload)); got != want {
			t.Errorf("%q leaves %s, want %s", path, got, want)
		}
	}
}
