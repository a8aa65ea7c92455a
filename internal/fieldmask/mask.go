// Package fieldmask keeps a part of an object: the values at some paths of names.
package fieldmask

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

// Mask is a tree of the names to keep; a node without kids keeps all. It never changes.
type Mask struct{ kids map[string]*Mask }

// MaxPaths is how many paths a mask has at most.
const MaxPaths = 100

// PathError says what is wrong with one path.
type PathError struct {
	// Index of the path, Path as it came, and why it is none.
	Index int
	Path  string
	Err   error
}

// Error implements error.
func (e *PathError) Error() string {
	return fmt.Sprintf("%.100q is not a path like metadata.name: %v", e.Path, e.Err)
}

// Unwrap is why the path is none.
func (e *PathError) Unwrap() error { return e.Err }

// Parse makes a mask of paths: names that are joined by dots, in backquotes when they hold dots
// themselves. Every path that is none is a [PathError] of the faults.
func Parse(paths []string) (m *Mask, faults []*PathError) {
	root := &Mask{}
	for i, path := range paths {
		names, err := splitPath(path)
		if err != nil {
			faults = append(faults, &PathError{i, path, err})
			continue
		}
		root.add(names)
	}
	return root, faults
}

// MaxPath is how many bytes a path has at most.
const MaxPath = 1024

// notBare are the characters of other notations for paths, which would be taken
// for names that no object has.
const notBare = "[]{}()*,`'\" \t\n\r"

// scalars are the fields that hold no others in any object.
var scalars = map[string]bool{
	"apiVersion": true, "kind": true, "metadata.name": true, "metadata.generateName": true, "metadata.namespace": true, "metadata.uid": true,
	"metadata.resourceVersion": true, "metadata.generation": true, "metadata.creationTimestamp": true, "metadata.deletionTimestamp": true,
	"metadata.deletionGracePeriodSeconds": true,
}

// splitPath returns the names in a path: joined by dots, in backquotes when they
// hold dots themselves.
func splitPath(path string) ([]string, error) {
	if len(path) > MaxPath {
		return nil, fmt.Errorf("longer than %d bytes", MaxPath)
	}
	var names []string
	for rest := path; ; {
		name, more := "", false
		if quoted, ok := strings.CutPrefix(rest, "`"); ok {
			if name, rest, ok = strings.Cut(quoted, "`"); !ok || rest != "" && rest[0] != '.' {
				return nil, errors.New("a name in backquotes does not end")
			}
			rest, more = strings.CutPrefix(rest, ".")
		} else {
			name, rest, more = strings.Cut(rest, ".")
			if at := strings.IndexAny(name, notBare); at >= 0 || name == "$" && len(names) == 0 {
				return nil, fmt.Errorf("%q is not part of a bare name: a path goes through lists by itself, and a name with such characters, or dots, stands in backquotes", name[max(at, 0)])
			}
		}
		if name == "" {
			return nil, errors.New("a name is empty")
		}
		if len(names) == 0 && name[0] == '/' {
			return nil, errors.New("names are joined by dots")
		}
		if names = append(names, name); !more {
			return names, nil
		}
		if at := strings.Join(names, "."); len(names) <= 2 && scalars[at] {
			return nil, fmt.Errorf("%s has no fields in any object", at)
		}
	}
}

func (n *Mask) add(names []string) {
	for i, name := range names {
		if i > 0 && n.kids == nil {
			return // a shorter path keeps all of this already
		}
		kid := n.kids[name]
		switch {
		case kid == nil:
			if n.kids == nil {
				n.kids = map[string]*Mask{}
			}
			kid = &Mask{}
			n.kids[name] = kid
			kid.build(names[i+1:])
			return
		case i == len(names)-1:
			kid.kids = nil
			return
		}
		n = kid
	}
}

func (n *Mask) build(names []string) {
	for _, name := range names {
		kid := &Mask{}
		n.kids = map[string]*Mask{name: kid}
		n = kid
	}
}

// Keep returns the part of a JSON object that the mask keeps.
func (n *Mask) Keep(object []byte) []byte {
	return pick(make([]byte, 0, 512), gjson.Parse(unsafe.String(unsafe.SliceData(object), len(object))), n)
}

// pick appends the parts of a value that a mask keeps. Names inside an array
// are kept in each of its elements; a name that is not there is left out.
func pick(dst []byte, v gjson.Result, n *Mask) []byte {
	switch {
	case n.kids == nil:
		return append(dst, v.Raw...)
	case v.IsArray():
		dst = append(dst, '[')
		first := true
		v.ForEach(func(_, e gjson.Result) bool {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = pick(dst, e, n)
			return true
		})
		return append(dst, ']')
	case !v.IsObject():
		return append(dst, "null"...)
	}
	dst = append(dst, '{')
	first := true
	v.ForEach(func(key, e gjson.Result) bool {
		kid, ok := n.kids[key.Str]
		if !ok || kid.kids != nil && !e.IsObject() && !e.IsArray() {
			return true
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(append(dst, key.Raw...), ':')
		dst = pick(dst, e, kid)
		return true
	})
	return append(dst, '}')
}
