package kube

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/deltaplane/deltaplane/core/delta"
)

// ErrPoison is wrapped by every error about an object that cannot be taken in: it is not JSON, or has no name or version.
var ErrPoison = errors.New("kube: object cannot be read")

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Transform says what is taken out of an object before it is stored, and what is read from it for the message headers. The zero value strips
// metadata.managedFields and the last-applied annotation.
type Transform struct {
	// KeepManagedFields and KeepLastApplied switch the defaults off.
	KeepManagedFields, KeepLastApplied bool
	// Drop names further fields by path, such as "status.images"; "\." is a dot inside a name.
	Drop []string
	// Hints are index hints by name: the path of the value.
	Hints map[string]string
	// Labels are the labels to carry in headers.
	Labels []string
}

// Normalize turns an object as the API server sent it into the canonical payload: kind and apiVersion are put in front when a list left
// them out, what the transform strips is gone, everything else keeps its bytes and its order. The result never shares memory with
// raw. Errors wrap [ErrPoison]; the returned object then holds the key and version if they could be read, and no payload.
func (t *Transform) Normalize(raw []byte, r Resource) (delta.Object, error) {
	raw = bytes.TrimSpace(raw) // answers to writes end in a newline
	var o delta.Object
	var cut cuts
	var kind, apiVersion bool
	var wrong error
	var ownerRefs, labels []byte
	var namespace, name string
	base := func(value []byte) int { return cap(raw) - cap(value) } // both end where raw's array ends
	err := members(raw, func(_ int, key, value []byte, _ int) error {
		switch string(key) {
		case "kind":
			kind = true
			if k, err := unquote(value); err != nil || k != r.Kind {
				wrong = fmt.Errorf("kind is %.100s, want %q", value, r.Kind) // R-23; the metadata may still tell which key
			}
		case "apiVersion":
			apiVersion = true
		case "metadata":
			at := base(value)
			var list spans
			strip := -1
			err := members(value, func(begin int, key, v []byte, end int) error {
				list = append(list, span{at + begin, at + end})
				var err error
				switch string(key) {
				case "name":
					name, err = unquote(v)
				case "namespace":
					namespace, err = unquote(v)
				case "uid":
					o.UID, err = unquote(v)
				case "resourceVersion":
					o.RV, err = unquote(v)
				case "generation":
					o.Generation, err = strconv.ParseInt(string(v), 10, 64)
				case "ownerReferences":
					ownerRefs = v
				case "labels":
					labels = v
				case "managedFields":
					if !t.KeepManagedFields {
						strip = len(list) - 1
					}
				case "annotations":
					if !t.KeepLastApplied && bytes.Contains(v, []byte(lastApplied)) {
						err = cut.annotation(v, base(v))
					}
				}
				return err
			})
			if strip >= 0 {
				cut.add(list, strip)
			}
			return err
		}
		return nil
	})
	o.Key = delta.NewKey(namespace, name)
	if e := complete(&o); err == nil {
		err = errors.Join(wrong, e)
	}
	if err != nil {
		return o, fmt.Errorf("%w: %w", ErrPoison, err)
	}
	if delta.TooDeep(raw) {
		return o, fmt.Errorf("%w: it nests deeper than %d", ErrPoison, delta.MaxDepth)
	}
	o.Payload = cut.apply(raw, prefix(kind, apiVersion, r))
	for _, path := range t.Drop {
		if o.Payload, err = sjson.DeleteBytes(o.Payload, path); err != nil {
			return o, fmt.Errorf("%w: drop %q: %w", ErrPoison, path, err)
		}
	}
	if !gjson.ValidBytes(o.Payload) {
		o.Payload = nil
		return o, fmt.Errorf("%w: %w", ErrPoison, errJSON)
	}
	o.Encoding, o.Hash = delta.EncodingJSON, delta.Hash(o.Payload)
	o.Owners = owners(ownerRefs)
	o.Labels = t.labels(labels)
	o.Hints = t.hints(o.Payload)
	return o, nil
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
	if labels == nil || len(t.Labels) == 0 {
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
	err := members(annotations, func(begin int, key, _ []byte, end int) error {
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
