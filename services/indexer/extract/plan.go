package extract

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/jsonscan"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

type path = definition.Path

// maxKeys is how many different keys of one object the scan can look for; a
// plan that has more decodes every payload instead.
const maxKeys = 256

// What the scan notes besides the plan's paths.
const (
	noMark = iota
	metadataMark
	namespaceMark
	nameMark
	uidMark
	rvMark
	labelsMark
	ownersMark
	marks
)

var metadataMarks = map[string]int{
	"namespace": namespaceMark, "name": nameMark, "uid": uidMark, "resourceVersion": rvMark, "labels": labelsMark, "ownerReferences": ownersMark,
}

// Plan is what is read of every object of a collection: metadata, the values of
// paths, and those of expressions. It is immutable and safe for concurrent use.
type Plan struct {
	paths    []path
	programs []*definition.Program
	names    []string // of the fields: paths, then programs
	root     *node
	slow     bool // an object has more keys than the scan can look for
}

// node is a place in an object at which the plan wants something.
type node struct {
	keys    []key
	each    *node // for the elements of a list
	leaves  []int // paths that end here
	through []int // paths that end here or below
	mark    int
}

type key struct {
	name []byte
	at   int // place among its siblings
	node *node
}

// NewPlan returns the plan of the paths and of every program that is not found
// in labels or owners; repeated ones count once.
func NewPlan(paths []definition.Path, programs []*definition.Program) *Plan {
	p := &Plan{root: &node{}}
	known := map[string]bool{}
	add := func(path definition.Path) {
		if !path.IsZero() && !known[path.String()] {
			known[path.String()] = true
			p.paths = append(p.paths, path)
		}
	}
	for _, path := range paths {
		add(path)
	}
	for _, g := range programs {
		add(g.Path())
	}
	for _, path := range p.paths {
		p.names = append(p.names, path.String())
	}
	for _, g := range programs {
		if g.Evaluates() && !known[g.Field()] {
			known[g.Field()] = true
			p.programs, p.names = append(p.programs, g), append(p.names, g.Field())
		}
	}
	meta := p.child(p.root, "metadata")
	meta.mark = metadataMark
	for name, mark := range metadataMarks {
		p.child(meta, name).mark = mark
	}
	for slot, path := range p.paths {
		n := p.root
		for _, step := range path.Steps() {
			if n = p.step(n, step); n == nil {
				break
			}
			n.through = append(n.through, slot)
		}
		if n != nil {
			n.leaves = append(n.leaves, slot)
		}
	}
	return p
}

func (p *Plan) step(n *node, s definition.Step) *node {
	if !s.Each {
		return p.child(n, s.Key)
	}
	if n.each == nil {
		n.each = &node{}
	}
	return n.each
}

func (p *Plan) child(n *node, name string) *node {
	for _, k := range n.keys {
		if string(k.name) == name {
			return k.node
		}
	}
	if len(n.keys) == maxKeys {
		p.slow = true
		return nil
	}
	c := &node{}
	n.keys = append(n.keys, key{name: []byte(name), at: len(n.keys), node: c})
	return c
}

// key finds the child of a key that is given as it is written between its quotes.
func (n *node) key(name []byte) *key {
	if bytes.IndexByte(name, '\\') >= 0 {
		s, err := jsonscan.Unquote(fmt.Appendf(nil, `"%s"`, name))
		if err != nil {
			return nil
		}
		name = []byte(s)
	}
	for i := range n.keys {
		if k := &n.keys[i]; len(k.name) == len(name) && bytes.Equal(k.name, name) {
			return k
		}
	}
	return nil
}

// Has reports whether objects extracted by p have the field, or need not have
// it because it is found in labels or owners.
func (p *Plan) Has(field string) bool {
	if field == "" {
		return true
	}
	return slices.Contains(p.names, field)
}

// Reads reports whether the text is that of one of the plan's paths.
func (p *Plan) Reads(path string) bool {
	for i := range p.paths {
		if p.paths[i].String() == path {
			return true
		}
	}
	return false
}

// Fields are the names of all fields that objects extracted by p have.
func (p *Plan) Fields() []string { return p.names }

// Paths are the plan's paths.
func (p *Plan) Paths() []definition.Path { return p.paths }

// Lacks reports whether an object was read by a plan that has not all of p's
// fields.
func (p *Plan) Lacks(o *store.Object) bool {
	for _, name := range p.names {
		if _, ok := o.Field(name); !ok {
			return true
		}
	}
	return false
}

// Differs reports whether an object has not exactly p's fields.
func (p *Plan) Differs(o *store.Object) bool {
	return len(o.Fields().Readings()) != len(p.names) || p.Lacks(o)
}

// Failed are the fields of an object that could not be read.
func (p *Plan) Failed(err error) *store.Fields {
	fields := make([]store.Field, len(p.names))
	for i, name := range p.names {
		fields[i] = store.Field{Name: name, Err: err}
	}
	return store.NewFields(fields)
}
