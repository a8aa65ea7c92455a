package table

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Table makes the rows of one resource. It is safe for concurrent use.
type Table struct {
	// Columns are the definitions of the columns, in JSON.
	Columns []byte

	row rower
}

// rower makes the cells of an object, and what is said of the row.
type rower func(object []byte, now time.Time) (cells []any, conditions []metav1.TableRowCondition, err error)

// New is the table of a resource with the columns of the API server; nil where they are not known.
// Custom are the columns of a custom resource, nil for others.
func New(r schema.GroupResource, columns []metav1.TableColumnDefinition, custom []Column) (*Table, error) {
	text, err := json.Marshal(columns)
	if err != nil {
		return nil, fmt.Errorf("table: columns: %w", err)
	}
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	if custom != nil {
		row, err := customRows(columns, custom)
		if row == nil || err != nil {
			return nil, err
		}
		return &Table{text, row}, nil
	}
	for _, known := range append(slices.Clip(everybodys), builtin[r]) {
		if known.row != nil && slices.Equal(known.columns, names) {
			return &Table{text, known.row}, nil
		}
	}
	return nil, nil //nolint:nilnil // it is not known
}

// AppendRow appends the row of an object at a time. Shown is the object as the row has it; null
// where it has none.
func (t *Table) AppendRow(b, object, shown []byte, now time.Time) ([]byte, error) {
	cells, conditions, err := t.row(object, now)
	if err != nil {
		return b, fmt.Errorf("table: %w", err)
	}
	text, err := json.Marshal(cells)
	if err != nil {
		return b, fmt.Errorf("table: %w", err)
	}
	b = append(append(b, `{"cells":`...), text...)
	if len(conditions) > 0 {
		if text, err = json.Marshal(conditions); err != nil {
			return b, fmt.Errorf("table: %w", err)
		}
		b = append(append(b, `,"conditions":`...), text...)
	}
	b = append(append(b, `,"object":`...), shown...) // which is JSON already
	return append(b, '}'), nil
}

// layout is what is made of a resource, where the API server has its columns.
type layout struct {
	columns []string
	row     rower
	wide    []string // those that only wide tables have
}

// everybodys are layouts of no resource's own.
var everybodys = []layout{
	{[]string{"Name", "Age"}, cells(func(o *named, now time.Time) []any { return []any{o.Metadata.Name, o.age(now)} }), nil},
	{[]string{"Name", "Created At"}, cells(func(o *named, _ time.Time) []any {
		return []any{o.Metadata.Name, o.Metadata.CreationTimestamp.UTC().Format(time.RFC3339)}
	}), nil},
}

// cells is a rower by objects of one shape.
func cells[T any](make func(*T, time.Time) []any) rower {
	return func(object []byte, now time.Time) ([]any, []metav1.TableRowCondition, error) {
		var o T
		if err := json.Unmarshal(object, &o); err != nil {
			return nil, nil, err
		}
		return make(&o, now), nil, nil
	}
}

// named is what all objects have.
type named struct {
	Metadata metadata
}

type metadata struct {
	Name              string
	CreationTimestamp metav1.Time
	DeletionTimestamp *metav1.Time
	Labels            map[string]string
	Annotations       map[string]string
}

func (o *named) age(now time.Time) string { return since(o.Metadata.CreationTimestamp.Time, now) }

// since is how long ago something was, as people read it.
func since(t, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t))
}

const none = "<none>"

// deref is what a pointer points to, or what stands for nothing.
func deref[T any](p *T, nothing T) T {
	if p == nil {
		return nothing
	}
	return *p
}
