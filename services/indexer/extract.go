package indexer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// errNotJSON is what is wrong with a payload that no client could read.
var errNotJSON = errors.New("payload is not a JSON object")

// errUnreadable is what the reflector says about an object it could not take in.
var errUnreadable = errors.New("the reflector could not read the object")

var errTooDeep = fmt.Errorf("payload nests deeper than %d", delta.MaxDepth)

// internLimit bounds the values an extractor remembers.
const internLimit = 1 << 16

// extractor reads from payloads what selectors and indexes need. Objects made
// from one template share label sets, owners and field values through it. It is
// for one goroutine.
type extractor struct {
	paths   []string
	labels  map[string]*store.Labels
	owners  map[string]*store.Owners
	strings map[string]string
	fields  map[string]*store.Fields
	values  []store.Field // scratch
	key     []byte        // scratch
}

func newExtractor(paths []string) *extractor {
	x := &extractor{paths: paths, labels: map[string]*store.Labels{}}
	x.owners, x.strings, x.fields = map[string]*store.Owners{}, map[string]string{}, map[string]*store.Fields{}
	return x
}

// facts are what an extractor finds.
type facts struct {
	namespace, name, uid, rv string
	labels                   *store.Labels
	owners                   *store.Owners
	fields                   *store.Fields
}

// extract reads one payload. The strings of the result do not refer to it,
// except namespace, name, uid and rv.
func (x *extractor) extract(payload []byte) (facts, error) {
	var f facts
	if delta.TooDeep(payload) {
		return f, errTooDeep
	}
	// gjson only reads, and payloads never change.
	text := unsafe.String(unsafe.SliceData(payload), len(payload))
	if !gjson.Valid(text) {
		return f, errNotJSON
	}
	root := gjson.Parse(text)
	if !root.IsObject() {
		return f, errNotJSON
	}
	meta := root.Get("metadata")
	if !meta.IsObject() {
		return f, errors.New("metadata is not a JSON object")
	}
	var err error
	meta.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "namespace":
			f.namespace = value.Str
		case "name":
			f.name = value.Str
		case "uid":
			f.uid = value.Str
		case "resourceVersion":
			f.rv = value.Str
		case "labels":
			f.labels, err = x.labelSet(value)
		case "ownerReferences":
			f.owners = x.ownerList(value)
		}
		return err == nil
	})
	if err != nil {
		return f, err
	}
	x.values = x.values[:0]
	for _, path := range x.paths {
		var values []string
		if v := root.Get(path); v.Exists() && v.Type != gjson.JSON && v.Type != gjson.Null {
			values = []string{x.intern(v.String())}
		}
		x.values = append(x.values, store.Field{Name: path, Values: values})
	}
	f.fields = x.fieldSet(x.values)
	return f, nil
}

func (x *extractor) labelSet(value gjson.Result) (*store.Labels, error) {
	if value.Type == gjson.Null {
		return nil, nil
	}
	if set, ok := x.labels[value.Raw]; ok {
		return set, nil
	}
	if !value.IsObject() {
		return nil, errors.New("metadata.labels is not a JSON object")
	}
	var pairs []store.Pair
	var err error
	value.ForEach(func(name, v gjson.Result) bool {
		if v.Type != gjson.String {
			err = fmt.Errorf("label %q is not a string", name.Str)
		}
		pairs = append(pairs, store.Pair{Name: x.intern(name.Str), Value: x.intern(v.Str)})
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	set := store.NewLabels(pairs)
	if len(x.labels) >= internLimit {
		clear(x.labels)
	}
	x.labels[strings.Clone(value.Raw)] = set
	return set, nil
}

func (x *extractor) ownerList(value gjson.Result) *store.Owners {
	if list, ok := x.owners[value.Raw]; ok {
		return list
	}
	var list []store.Owner
	value.ForEach(func(_, ref gjson.Result) bool {
		list = append(list, store.Owner{
			Kind: x.intern(ref.Get("kind").Str), Name: strings.Clone(ref.Get("name").Str), UID: strings.Clone(ref.Get("uid").Str),
			Controller: ref.Get("controller").Bool(),
		})
		return true
	})
	if len(x.owners) >= internLimit {
		clear(x.owners)
	}
	owners := store.NewOwners(list)
	x.owners[strings.Clone(value.Raw)] = owners
	return owners
}

// fieldSet returns the one set with these values, each of at most one value.
func (x *extractor) fieldSet(list []store.Field) *store.Fields {
	x.key = x.key[:0]
	for i := range list {
		x.key = append(x.key, byte(len(list[i].Values)))
		for _, v := range list[i].Values {
			x.key = append(binary.AppendUvarint(x.key, uint64(len(v))), v...)
		}
	}
	if set, ok := x.fields[string(x.key)]; ok {
		return set
	}
	if len(x.fields) >= internLimit {
		clear(x.fields)
	}
	set := store.NewFields(slices.Clone(list))
	x.fields[string(x.key)] = set
	return set
}

func (x *extractor) intern(s string) string {
	if kept, ok := x.strings[s]; ok {
		return kept
	}
	if len(x.strings) >= internLimit {
		clear(x.strings)
	}
	s = strings.Clone(s)
	x.strings[s] = s
	return s
}

// object turns a record that carries an object into a store object. A payload
// that cannot be used makes it faulty, with the hints of the record's headers in
// place of facts, so that the key is still found, and refused, where it was.
func (x *extractor) object(r *delta.Record) *store.Object {
	o := store.ObjectConfig{
		Key: string(r.Key), UID: r.UID, RV: r.RV, Epoch: r.Epoch, Sequence: r.Sequence, Generation: r.Generation, Payload: r.Payload,
	}
	var f facts
	var err error
	switch r.Encoding {
	case delta.EncodingUnreadable:
		err = errUnreadable
	case delta.EncodingJSON, "":
		f, err = x.extract(r.Payload)
	default:
		err = fmt.Errorf("encoding %q is not known", r.Encoding)
	}
	switch {
	case err != nil:
	case r.Hash != 0 && delta.Hash(r.Payload) != r.Hash:
		err = errors.New("payload does not match its checksum")
	case join(f.namespace, f.name) != o.Key:
		err = fmt.Errorf("payload is of key %q", join(f.namespace, f.name))
	}
	if err == nil {
		o.Labels, o.Owners, o.Fields = f.labels, f.owners, f.fields
		return store.NewObject(o)
	}
	o.Fault = err.Error()
	var pairs []store.Pair
	for name, values := range r.Labels {
		for _, v := range values {
			pairs = append(pairs, store.Pair{Name: name, Value: v})
		}
	}
	o.Labels = store.NewLabels(pairs)
	owners := make([]store.Owner, 0, len(r.Owners))
	for _, w := range r.Owners {
		owners = append(owners, store.Owner(w))
	}
	o.Owners = store.NewOwners(owners)
	if hints := r.Hints[nodeIndex]; len(hints) > 0 {
		o.Fields = store.NewFields([]store.Field{{Name: nodeField, Values: hints}})
	}
	return store.NewObject(o)
}

func join(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
