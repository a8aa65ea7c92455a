package collections

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/internal/table"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// definitions are those of custom resources.
var definitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// Columns are the printer columns of a custom resource, by its definition in the index; none of
// another resource, and where the index does not have the definition or does not show it to this
// caller.
func Columns(ctx context.Context, index indexv1.IndexServiceClient, all []*indexv1.CollectionStatus, c *indexv1.CollectionStatus) []table.Column {
	defined := slices.ContainsFunc(all, func(c *indexv1.CollectionStatus) bool {
		return c.GetGroup() == definitions.Group && c.GetResource() == definitions.Resource
	})
	if !defined || !strings.Contains(c.GetGroup(), ".") || table.Builtin(schema.GroupResource{Group: c.GetGroup(), Resource: c.GetResource()}) != nil {
		return nil
	}
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
