package client

import (
	"encoding/json"
	"fmt"

	"github.com/deltaplane/deltaplane/core/delta"
)

// A Mapper names the keys to look at because of a record. All means that the
// record cannot tell (its owners or hints overflowed) and that every key must be
// looked at. It must not keep the record.
type Mapper func(r *delta.Record) (keys []string, all bool)

// Self maps a record to its own key.
func Self() Mapper {
	return func(r *delta.Record) ([]string, bool) { return []string{string(r.Key)}, false }
}

// OwnersOf maps a record to its owners of a kind, in the record's namespace:
// those it has, and those it has had within the tombstone TTL.
func OwnersOf(kind string) Mapper {
	return func(r *delta.Record) ([]string, bool) {
		namespace, _, err := r.Key.Split()
		if err != nil {
			return nil, false
		}
		var keys []string
		for _, o := range r.Owners {
			if o.Kind == kind {
				keys = append(keys, string(delta.NewKey(namespace, o.Name)))
			}
		}
		return keys, r.Overflow
	}
}

// Hint maps a record to the values of one of its index hints, such as "node".
// Only records of the log carry hints, so a sweep finds nothing by it.
func Hint(index string) Mapper {
	return func(r *delta.Record) ([]string, bool) { return r.Hints[index], r.Overflow }
}

// recordOf makes a record of an object's metadata, so that a sweep of the index
// maps objects as the log's records are mapped.
func recordOf(collection string, obj Object) (*delta.Record, error) {
	var o struct {
		Metadata struct {
			Labels          map[string]string `json:"labels"`
			OwnerReferences []struct {
				Kind       string `json:"kind"`
				Name       string `json:"name"`
				UID        string `json:"uid"`
				Controller bool   `json:"controller"`
			} `json:"ownerReferences"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(obj.Payload, &o); err != nil {
		return nil, fmt.Errorf("client: metadata of %s %s: %w", collection, obj.Key, err)
	}
	r := &delta.Record{Kind: delta.KindDelta, Type: delta.Sync, Key: delta.Key(obj.Key), UID: obj.UID, RV: obj.ResourceVersion}
	for _, ref := range o.Metadata.OwnerReferences {
		r.Owners = append(r.Owners, delta.Owner{Kind: ref.Kind, Name: ref.Name, UID: ref.UID, Controller: ref.Controller})
	}
	for name, value := range o.Metadata.Labels {
		if r.Labels == nil {
			r.Labels = map[string][]string{}
		}
		r.Labels[name] = []string{value}
	}
	return r, nil
}
