package message

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Projection is how much of each object an answer holds.
type Projection struct {
	View indexv1.View
	Mask *Mask // nil without a field mask
}

// Content reports whether answers hold more of the objects than their keys.
func (p *Projection) Content() bool { return p.View != indexv1.View_VIEW_KEYS }

// metadataMask is VIEW_METADATA.
var metadataMask = &Mask{kids: map[string]*Mask{"apiVersion": {}, "kind": {}, "metadata": {}}}

// Project checks what a request asks for. Only one of view and mask may be set.
func Project(view indexv1.View, mask *fieldmaskpb.FieldMask) (Projection, error) {
	p := Projection{View: view}
	if _, ok := indexv1.View_name[int32(view)]; !ok {
		return p, rpc.InvalidArgument("view", fmt.Sprintf("%d is not a view", view))
	}
	if view == indexv1.View_VIEW_METADATA {
		p.Mask = metadataMask
	}
	if mask == nil {
		return p, nil
	}
	if view != indexv1.View_VIEW_UNSPECIFIED {
		return p, rpc.InvalidArgument("field_mask", "excludes view")
	}
	var err error
	p.Mask, err = parseMask(mask.GetPaths())
	return p, err
}

// Mask is a tree of the names to keep; a node without kids keeps all.
type Mask struct{ kids map[string]*Mask }

const maxMaskPaths = 100

func parseMask(paths []string) (*Mask, error) {
	switch {
	case len(paths) == 0:
		return nil, rpc.InvalidArgument("field_mask", "has no paths")
	case len(paths) > maxMaskPaths:
		return nil, rpc.InvalidArgument("field_mask", fmt.Sprintf("%d paths, at most %d", len(paths), maxMaskPaths))
	}
	root := &Mask{}
	var errs []error
	for i, path := range paths {
		names, err := splitPath(path)
		if err != nil {
			errs = append(errs, rpc.InvalidArgument(fmt.Sprintf("field_mask.paths[%d]", i), fmt.Sprintf("%.100q is not a path like metadata.name: %v", path, err)))
			continue
		}
		root.add(names)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return root, nil
}

const maxMaskPath = 1024

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
	if len(path) > maxMaskPath {
		return nil, fmt.Errorf("longer than %d bytes", maxMaskPath)
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

// Payload returns the part of an object's bytes that the projection keeps; the
// bytes themselves when that is all.
func (p *Projection) Payload(payload []byte) []byte {
	if p.Mask == nil {
		return payload
	}
	return pick(make([]byte, 0, 512), gjson.Parse(unsafe.String(unsafe.SliceData(payload), len(payload))), p.Mask)
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
