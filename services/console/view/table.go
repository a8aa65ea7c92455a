package view

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/table"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// columns are those of a collection's rows, as kubectl shows them.
type columns struct {
	plain *table.Plain
	wide  bool
	shown []*consolev1.Column
	ages  bool // cells beside the age depend on the time
}

// columnsOf are the columns of a collection: kubectl's for a built-in resource, and else those
// of its definition where that is mirrored and shown to the caller.
func (h *Hub) columnsOf(ctx context.Context, collection string, wide bool) *columns {
	c, err := delta.ParseCollection(collection)
	plain := table.Builtin(schema.GroupResource{Group: c.Group, Resource: c.Resource})
	if err != nil || plain == nil {
		plain = h.custom(ctx, c)
	}
	out := &columns{plain: plain, wide: wide}
	for _, one := range plain.Columns {
		if wide || !one.Wide {
			out.shown = append(out.shown, &consolev1.Column{Name: one.Name, Age: one.Name == ageColumn})
		}
	}
	return out
}

const ageColumn = "Age"

func (h *Hub) custom(ctx context.Context, c delta.Collection) *table.Plain {
	var own []table.Column
	if strings.Contains(c.Group, ".") {
		ctx, cancel := context.WithTimeout(ctx, askWithin)
		defer cancel()
		answer, err := h.indexes.Get(ctx, &indexv1.GetRequest{
			Collection: c.Cluster + "/customresourcedefinitions.v1.apiextensions.k8s.io", Key: c.Resource + "." + c.Group,
		})
		if err == nil {
			own, _, _ = table.OfDefinition(answer.GetObject().GetPayload(), c.Version) // what cannot be read has no columns
		}
	}
	plain, err := table.Custom(own)
	if err != nil {
		plain, _ = table.Custom(nil) // the age alone is always a column
	}
	return plain
}

// row is an object in the table.
func (c *columns) row(key string, payload []byte) *consolev1.Row {
	row := &consolev1.Row{Key: key, Deleting: gjson.GetBytes(payload, "metadata.deletionTimestamp").Exists()}
	now := time.Now()
	cells, err := c.plain.Cells(payload, now)
	if err != nil {
		row.Fault = "the object is not as its kind has it"
		return row
	}
	c.ages = c.ages || c.agesIn(payload, cells, now)
	for i, one := range c.plain.Columns {
		switch {
		case !c.wide && one.Wide:
		case one.Name == ageColumn:
			row.Cells = append(row.Cells, gjson.GetBytes(payload, "metadata.creationTimestamp").String())
		case cells[i] == nil:
			row.Cells = append(row.Cells, "")
		default:
			row.Cells = append(row.Cells, fmt.Sprint(cells[i]))
		}
	}
	return row
}

// agesIn reports whether cells of an object will be others with time.
func (c *columns) agesIn(payload []byte, cells []any, now time.Time) bool {
	later, err := c.plain.Cells(payload, now.Add(1000*time.Hour))
	if err != nil {
		return false
	}
	for i, one := range c.plain.Columns {
		if one.Name != ageColumn && (c.wide || !one.Wide) && !slices.Equal([]string{fmt.Sprint(cells[i])}, []string{fmt.Sprint(later[i])}) {
			return true
		}
	}
	return false
}
