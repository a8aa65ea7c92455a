package table

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Plain are the columns of a resource where no API server says which it has. It is safe for
// concurrent use.
type Plain struct {
	// Columns are those that kubectl shows, the name first.
	Columns []Shown

	row rower
}

// Shown is a column as kubectl shows it.
type Shown struct {
	Name string
	Wide bool // only -o wide has it
}

// Builtin are the columns of a built-in resource; nil for one that is not known.
func Builtin(r schema.GroupResource) *Plain {
	known, ok := builtin[r]
	if !ok {
		return nil
	}
	p := &Plain{row: known.row}
	for _, name := range known.columns {
		p.Columns = append(p.Columns, Shown{name, slices.Contains(known.wide, name)})
	}
	return p
}

// Custom are the printer columns of a custom resource: the age where its definition has none.
func Custom(columns []Column) (*Plain, error) {
	if len(columns) == 0 {
		columns = ageColumn
	}
	row, err := pathRows(columns)
	if err != nil {
		return nil, err
	}
	p := &Plain{Columns: []Shown{{Name: "Name"}}, row: row}
	for _, c := range columns {
		p.Columns = append(p.Columns, Shown{c.Name, c.Priority > 0})
	}
	return p, nil
}

// Cells are what stands in the columns of an object at a time; nil for nothing.
func (p *Plain) Cells(object []byte, now time.Time) ([]any, error) {
	cells, _, err := p.row(object, now)
	return cells, err
}
