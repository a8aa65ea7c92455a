package access

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Scope is the part of a collection that a caller may see. Its zero value is none of it.
type Scope struct {
	// All of the collection is visible.
	All bool
	// Namespaces that are visible where not all of it is: sorted, each once.
	Namespaces []string
}

// Equal reports whether two scopes show the same.
func (s Scope) Equal(o Scope) bool {
	return s.All == o.All && slices.Equal(s.Namespaces, o.Namespaces)
}

// Sees reports whether objects of a namespace are visible.
func (s Scope) Sees(namespace string) bool {
	if s.All {
		return true
	}
	_, found := slices.BinarySearch(s.Namespaces, namespace)
	return found
}

// Differ is what one of two scopes shows alone: all, where one of them shows all.
func (s Scope) Differ(o Scope) Scope {
	out := Scope{All: s.All != o.All}
	if s.All || o.All {
		return out
	}
	for _, ns := range s.Namespaces {
		if !o.Sees(ns) {
			out.Namespaces = append(out.Namespaces, ns)
		}
	}
	for _, ns := range o.Namespaces {
		if !s.Sees(ns) {
			out.Namespaces = append(out.Namespaces, ns)
		}
	}
	slices.Sort(out.Namespaces)
	return out
}

// Print tells scopes apart, on every replica alike; 0 is all.
func (s Scope) Print() uint64 {
	if s.All {
		return 0
	}
	h := sha256.New()
	for _, ns := range s.Namespaces {
		_, _ = h.Write([]byte(ns + "/"))
	}
	return max(binary.BigEndian.Uint64(h.Sum(nil)), 1)
}

// Namespaces are those in which the policy grants an identity something.
func (p *Policy) Namespaces(id *Identity) (list []string) {
	for _, as := range p.here(id) {
		for i := range p.Grants {
			if g := &p.Grants[i]; g.Namespace != "" && g.isFor(as) {
				list = append(list, g.Namespace)
			}
		}
	}
	return list
}
