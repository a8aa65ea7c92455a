package extract

import (
	"errors"
	"fmt"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// labelSet reads metadata.labels.
func (x *Extractor) labelSet(raw []byte) (*store.Labels, error) {
	if absent(raw) {
		return nil, nil
	}
	if set, ok := x.labels.get(raw); ok {
		return set, nil
	}
	var pairs []store.Pair
	err := members(raw, func(key, value []byte) error {
		name, err := x.text(key)
		if err != nil {
			return err
		}
		if value[0] != '"' {
			return fmt.Errorf("label %q is not a string", name)
		}
		text, err := x.text(value)
		if err != nil {
			return err
		}
		for i := range pairs {
			if pairs[i].Name == name { // as JSON decoders do, the last one counts
				pairs[i].Value = text
				return nil
			}
		}
		pairs = append(pairs, store.Pair{Name: name, Value: text})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("metadata.labels: %w", err)
	}
	set := store.NewLabels(pairs)
	x.labels.put(raw, set)
	return set, nil
}

// ownerList reads metadata.ownerReferences.
func (x *Extractor) ownerList(raw []byte) (*store.Owners, error) {
	if absent(raw) {
		return nil, nil
	}
	if list, ok := x.owners.get(raw); ok {
		return list, nil
	}
	var list []store.Owner
	err := elements(raw, func(ref []byte) error {
		var w store.Owner
		err := members(ref, func(key, value []byte) (err error) {
			name, err := jsonscan.Unquote(key)
			if err != nil {
				return err
			}
			switch name {
			case "kind":
				w.Kind, err = x.text(stringOrNone(value))
			case "name":
				w.Name, err = jsonscan.Unquote(stringOrNone(value))
			case "uid":
				w.UID, err = jsonscan.Unquote(stringOrNone(value))
			case "controller":
				w.Controller = string(value) == "true"
			}
			return err
		})
		list = append(list, w)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("metadata.ownerReferences: %w", err)
	}
	owners := store.NewOwners(list)
	x.owners.put(raw, owners)
	return owners, nil
}

func absent(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }

// stringOrNone is the value if it is a string, otherwise the empty one.
func stringOrNone(raw []byte) []byte {
	if raw[0] == '"' {
		return raw
	}
	return []byte(`""`)
}

var (
	errNotObject = errors.New("is not a JSON object")
	errNotList   = errors.New("is not a JSON list")
)

// members walks the members of a JSON object that was validated, key and value as
// they are written.
func members(raw []byte, visit func(key, value []byte) error) error {
	if len(raw) == 0 || raw[0] != '{' {
		return errNotObject
	}
	return jsonscan.Members(raw, func(begin, _ int, key, value []byte) error {
		return visit(raw[begin:begin+len(key)+2], value)
	})
}

// elements walks the elements of a JSON list that was validated.
func elements(raw []byte, visit func(value []byte) error) error {
	if len(raw) == 0 || raw[0] != '[' {
		return errNotList
	}
	return jsonscan.Elements(raw, visit)
}
