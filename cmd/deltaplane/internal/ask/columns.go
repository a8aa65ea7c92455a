package ask

import (
	"context"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/collections"
	"github.com/deltaplane/deltaplane/internal/table"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// columns are the printer columns of what is to be shown as a table; none where it has no own.
func (s *selection) columns(ctx context.Context, index indexv1.IndexServiceClient) []table.Column {
	if s.output != "table" && s.output != "wide" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return collections.Columns(ctx, index, s.served, s.found)
}
