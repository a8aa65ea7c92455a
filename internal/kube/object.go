package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// ErrPoison is wrapped by every error about an object that cannot be taken in: it is not JSON, or
// has no name or version.
var ErrPoison = errors.New("kube: object cannot be read")

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Transform says what is taken out of an object before it is stored, and what is read from it for
// the message headers. The zero value strips metadata.managedFields, which a server keeps when an
// object is written back without.
type Transform struct {
	// KeepManagedFields leaves metadata.managedFields in. DropLastApplied takes kubectl's
	// last-applied annotation out; writing such an object back removes it.
	KeepManagedFields, DropLastApplied bool
	// Drop names further fields by path, such as "status.images"; "\." is a dot inside a name.
	Drop []string
	// Hints are index hints by name: the path of the value.
	Hints map[string]string
	// Labels are the labels to carry in headers.
	Labels []string
}

// Dropped are the paths of the fields that objects of the transform lack; never nil.
func (t *Transform) Dropped() []string {
	paths := append([]string{}, t.Drop...)
	if !t.KeepManagedFields {
		paths = append(paths, delta.ManagedFields)
	}
	if t.DropLastApplied {
		paths = append(paths, delta.LastApplied)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Normalize turns an object as the API server sent it into the canonical payload: kind and
// apiVersion are put in front when a list left them out, what the transform strips is gone,
// everything else keeps its bytes and its order. The result never shares memory with raw. Errors
// wrap [ErrPoison]; the returned object then holds the key and version if they could be read, and
// no payload.
func (t *Transform) Normalize(raw []byte, r Resource) (delta.Object, error) {
	raw = bytes.TrimSpace(raw) // answers to writes end in a newline
	in := reading{t: t, r: r, scanner: scanner{Strict: true, MaxDepth: delta.MaxDepth}}
	in.Reset(raw)
	in.look()
	err := in.object()
	valid := err == nil
	if !valid { // what is wrong may lie beside what names the object
		in = reading{t: t, r: r, scanner: jsonscan.Over(raw)}
		err = in.object()
	}
	o := in.o
	o.Key = delta.NewKey(in.namespace, in.name)
	if e := complete(&o); err == nil {
		err = errors.Join(in.wrong, e)
	}
	if err != nil {
		return o, fmt.Errorf("%w: %w", ErrPoison, err)
	}
	if !valid && delta.TooDeep(raw) {
		return o, fmt.Errorf("%w: it nests deeper than %d", ErrPoison, delta.MaxDepth)
	}
	o.Payload = in.cut.apply(raw, prefix(in.kind, in.apiVersion, r))
	for _, path := range t.Drop {
		if o.Payload, err = sjson.DeleteBytes(o.Payload, path); err != nil {
			return o, fmt.Errorf("%w: drop %q: %w", ErrPoison, path, err)
		}
	}
	if !valid || len(t.Drop) > 0 {
		if err := jsonscan.Valid(o.Payload, 0); err != nil {
			o.Payload = nil
			return o, fmt.Errorf("%w: %w", ErrPoison, err)
		}
	}
	o.Encoding, o.Hash = delta.EncodingJSON, delta.Hash(o.Payload)
	o.Owners = owners(in.ownerRefs)
	o.Labels = t.labels(in.labels)
	if in.looking && valid {
		o.Hints = in.hints()
	} else {
		o.Hints = t.hints(o.Payload)
	}
	return o, nil
}

type scanner = jsonscan.Scanner

// reading is one pass over an object.
type reading struct {
	scanner
	t *Transform
	r Resource

	o                 delta.Object
	kind, apiVersion  bool // seen
	namespace, name   string
	ownerRefs, labels []byte
	cut               cuts
	wrong             error // what the object is, when it is none of the resource's

	looking bool // for all hints of the transform
	wanted  []wanted
	room    [2]wanted
}

// wanted is a hint that is found on the way: its path is one plain name in another.
type wanted struct {
	name, outer, inner string
	value              []byte
}

// look notes the hints to find on the way, when all are such.
func (in *reading) look() {
	in.wanted = in.room[:0]
	for name, path := range in.t.Hints {
		outer, inner, ok := strings.Cut(path, ".")
		if !ok || outer == "metadata" || !plainName(outer) || !plainName(inner) {
			return
		}
		in.wanted = append(in.wanted, wanted{name: name, outer: outer, inner: inner})
	}
	in.looking = len(in.t.Drop) == 0
}

func plainName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c-'0' > 9 && (c|0x20)-'a' > 25 {
			return false
		}
	}
	return s != "" && s[0] > '9'
}

// inside goes through a member that wanted hints may be in.
func (in *reading) inside(outer []byte) error {
	if in.Peek() != '{' {
		_, err := in.Value()
		return err
	}
	return in.Object(func(_ int, key []byte) error {
		v, err := in.Value()
		for i := range in.wanted {
			if h := &in.wanted[i]; h.value == nil && h.inner == string(key) && h.outer == string(outer) {
				h.value = v
			}
		}
		return err
	})
}

func (in *reading) wants(outer []byte) bool {
	for i := range in.wanted {
		if in.wanted[i].outer == string(outer) {
			return true
		}
	}
	return false
}

func (in *reading) hints() map[string][]string {
	var out map[string][]string
	for i := range in.wanted {
		if v := gjson.ParseBytes(in.wanted[i].value).String(); v != "" {
			if out == nil {
				out = map[string][]string{}
			}
			out[in.wanted[i].name] = []string{v}
		}
	}
	return out
}

func (in *reading) object() error {
	err := in.Object(func(_ int, key []byte) error {
		switch string(key) {
		case "kind":
			value, err := in.Value()
			if err != nil {
				return err
			}
			in.kind = true
			if k, err := jsonscan.Unquote(value); err != nil || k != in.r.Kind {
				in.wrong = fmt.Errorf("kind is %.100s, want %q", value, in.r.Kind) // the metadata may still tell which key
			}
			return nil
		case "apiVersion":
			in.apiVersion = true
		case "metadata":
			return in.metadata()
		default:
			if in.Strict && in.wants(key) {
				return in.inside(key)
			}
		}
		_, err := in.Value()
		return err
	})
	if err != nil {
		return err
	}
	return in.End()
}

func (in *reading) metadata() error {
	var room [16]span
	list, strip := spans(room[:0]), -1
	err := in.Object(func(begin int, key []byte) error {
		var v []byte
		var err error
		if string(key) == "managedFields" && !in.t.KeepManagedFields {
			err = in.Skip()
			strip = len(list)
		} else {
			v, err = in.Value()
		}
		if err != nil {
			return err
		}
		list = append(list, span{begin, in.Offset()})
		switch string(key) {
		case "name":
			in.name, err = jsonscan.Unquote(v)
		case "namespace":
			in.namespace, err = jsonscan.Unquote(v)
		case "uid":
			in.o.UID, err = jsonscan.Unquote(v)
		case "resourceVersion":
			in.o.RV, err = jsonscan.Unquote(v)
		case "generation":
			in.o.Generation, err = strconv.ParseInt(string(v), 10, 64)
		case "ownerReferences":
			in.ownerRefs = v
		case "labels":
			in.labels = v
		case "annotations":
			if in.t.DropLastApplied && bytes.Contains(v, []byte(lastApplied)) {
				err = in.cut.annotation(v, in.Offset()-len(v))
			}
		}
		return err
	})
	if strip >= 0 && strip < len(list) {
		in.cut.add(list, strip)
	}
	return err
}

// complete checks what every record needs, and clears what is not valid.
func complete(o *delta.Object) error {
	_, keyErr := delta.ParseKey(string(o.Key))
	if keyErr != nil {
		keyErr = fmt.Errorf("metadata.name: %w", keyErr)
	}
	rv, rvErr := delta.ParseRV(o.RV)
	if rvErr != nil {
		rvErr = fmt.Errorf("metadata.resourceVersion of %q: %w", string(o.Key), rvErr)
	}
	if o.RV = rv; keyErr != nil {
		o.Key = ""
	}
	return errors.Join(keyErr, rvErr)
}

func prefix(kind, apiVersion bool, r Resource) string {
	var p string
	if !kind {
		p += `"kind":` + strconv.Quote(r.Kind) + ","
	}
	if !apiVersion {
		p += `"apiVersion":` + strconv.Quote(r.APIVersion()) + ","
	}
	return p
}

// EventRV reads the resource version of an object, such as a bookmark's, without taking it in.
func EventRV(raw []byte) (delta.RV, error) {
	return delta.ParseRV(gjson.GetBytes(raw, "metadata.resourceVersion").String())
}

// Namespace reads an object's namespace without taking it in, and no further than there. Told is
// false when the object names none, or cannot be read up to it. Of two that it names, which nobody
// sends, it is the first, where [Transform.Normalize] takes the last.
func Namespace(raw []byte) (namespace string, told bool) {
	var found []byte
	s := jsonscan.Over(raw)
	_ = s.Object(func(_ int, key []byte) error {
		if string(key) != "metadata" {
			return s.Skip()
		}
		return s.Object(func(_ int, key []byte) error {
			if string(key) != "namespace" {
				return s.Skip()
			}
			found, _ = s.Value()
			return io.EOF
		})
	}) // what is wrong with it Normalize tells
	if found == nil {
		return "", false
	}
	namespace, err := jsonscan.Unquote(found)
	return namespace, err == nil && namespace != ""
}

// Key reads an object's key without taking it in; empty when it has no name.
func Key(raw []byte) delta.Key {
	m := gjson.GetBytes(raw, "metadata")
	return delta.NewKey(m.Get("namespace").String(), m.Get("name").String())
}

func owners(refs []byte) []delta.Owner {
	if refs == nil {
		return nil
	}
	var out []delta.Owner
	gjson.ParseBytes(refs).ForEach(func(_, ref gjson.Result) bool {
		out = append(out, delta.Owner{
			Kind: ref.Get("kind").String(), Name: ref.Get("name").String(), UID: ref.Get("uid").String(),
			Controller: ref.Get("controller").Bool(),
		})
		return true
	})
	return out
}

func (t *Transform) labels(labels []byte) map[string][]string {
	if !t.mayCarry(labels) {
		return nil
	}
	var out map[string][]string
	gjson.ParseBytes(labels).ForEach(func(name, value gjson.Result) bool {
		for _, want := range t.Labels {
			if name.String() == want {
				if out == nil {
					out = map[string][]string{}
				}
				out[want] = []string{value.String()}
			}
		}
		return true
	})
	return out
}

// mayCarry reports whether a label to carry may be among labels.
func (t *Transform) mayCarry(labels []byte) bool {
	for _, want := range t.Labels {
		if bytes.Contains(labels, []byte(want)) {
			return true
		}
	}
	return len(t.Labels) > 0 && bytes.IndexByte(labels, '\\') >= 0 // escaped, for what reason ever
}

func (t *Transform) hints(payload []byte) map[string][]string {
	var out map[string][]string
	for name, path := range t.Hints {
		if v := gjson.GetBytes(payload, path); v.Exists() && v.String() != "" {
			if out == nil {
				out = map[string][]string{}
			}
			out[name] = []string{v.String()}
		}
	}
	return out
}

type span struct{ begin, end int }

// spans are the members of one object, in order.
type spans []span

// cuts are ranges to leave out, kept in order.
type cuts []span

// add leaves member i of list out, together with the comma that belongs to it.
func (c *cuts) add(list spans, i int) {
	s := list[i]
	switch {
	case i+1 < len(list):
		s.end = list[i+1].begin
	case i > 0:
		s.begin = list[i-1].end
	}
	*c = append(*c, s)
}

func (c *cuts) annotation(annotations []byte, at int) error {
	var list spans
	strip := -1
	err := jsonscan.Members(annotations, func(begin, end int, key, _ []byte) error {
		list = append(list, span{at + begin, at + end})
		if string(key) == lastApplied {
			strip = len(list) - 1
		}
		return nil
	})
	if err == nil && strip >= 0 {
		c.add(list, strip)
	}
	return err
}

// apply copies raw without the cuts and with prefix after the opening brace.
func (c *cuts) apply(raw []byte, prefix string) []byte {
	size := len(raw) + len(prefix)
	for _, s := range *c {
		size -= s.end - s.begin
	}
	out := make([]byte, 0, size)
	brace := bytes.IndexByte(raw, '{') + 1
	out = append(append(out, raw[:brace]...), prefix...)
	for at := brace; ; {
		next := span{len(raw), len(raw)}
		for _, s := range *c {
			if s.begin >= at && s.begin < next.begin {
				next = s
			}
		}
		out = append(out, raw[at:next.begin]...)
		if at = next.end; at >= len(raw) {
			return out
		}
	}
}
