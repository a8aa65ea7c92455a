package ask

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/internal/table"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// definitions are those of custom resources.
var definitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// columns are the printer columns of a custom resource, by its definition in the index; none where
// the index does not have it, or does not show it to this caller.
func (s *selection) columns(ctx context.Context, index indexv1.IndexServiceClient) []table.Column {
	c := s.found
	if !s.defined || s.output != "table" && s.output != "wide" || !strings.Contains(c.GetGroup(), ".") ||
		table.Builtin(schema.GroupResource{Group: c.GetGroup(), Resource: c.GetResource()}) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	answer, err := index.Get(ctx, &indexv1.GetRequest{
		Collection: c.GetCluster() + "/" + definitions.Resource + ".v1." + definitions.Group, Key: c.GetResource() + "." + c.GetGroup(),
		View: indexv1.View_VIEW_FULL,
	})
	if err != nil {
		return nil
	}
	columns, _, err := table.OfDefinition(answer.GetObject().GetPayload(), c.GetVersion())
	if err != nil {
		return nil
	}
	return columns
}
