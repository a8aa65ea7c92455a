package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
)

// owners remembers, while this replica leads, which keys own the objects of a collection. A
// watch says who owns an object, and not who did: without it an owner that lost an object
// would not run.
type owners struct {
	of map[string][]string // by the object's key; without those that have none
	// until is up to where changes may have been that are not remembered: after a takeover
	// the state that was read includes them. Zero where everything is known.
	until client.Revision
}

// ownerFields are what is watched of owned objects.
var ownerFields = []string{"metadata.ownerReferences"}

type ownerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// ownerKeys are the keys that own an object.
func (w *watched) ownerKeys(obj client.Object) ([]string, error) {
	if len(obj.Payload) == 0 {
		return nil, nil
	}
	var o struct {
		Metadata struct {
			Owners []ownerReference `json:"ownerReferences"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(obj.Payload, &o); err != nil {
		return nil, fmt.Errorf("controller: owners of %s %s: %w", w.collection, obj.Key, err)
	}
	var keys []string
	for _, ref := range o.Metadata.Owners {
		if w.ownedBy.is(ref) {
			keys = append(keys, w.ownedBy.key(obj.Key, ref.Name))
		}
	}
	return keys, nil
}

// ownerKind is how owner references name the objects that the controller is for.
type ownerKind struct {
	group, kind, resource string // kind is empty where it is guessed
	clusterScoped         bool
}

func (k ownerKind) is(ref ownerReference) bool {
	group, _, grouped := strings.Cut(ref.APIVersion, "/")
	if !grouped {
		group = ""
	}
	return group == k.group && k.isKind(ref.Kind)
}

func (k ownerKind) isKind(kind string) bool {
	if k.kind != "" {
		return kind == k.kind
	}
	return plural(kind) == k.resource
}

// key is that of the owner of an object.
func (k ownerKind) key(object, name string) string {
	if k.clusterScoped {
		return name
	}
	return string(delta.NewKey(delta.Key(object).Namespace(), name))
}

// plural guesses a kind's resource as kubectl does.
func plural(kind string) string {
	s := strings.ToLower(kind)
	switch {
	case s == "" || strings.HasSuffix(s, "endpoints"):
		return s
	case strings.HasSuffix(s, "s"), strings.HasSuffix(s, "x"), strings.HasSuffix(s, "ch"), strings.HasSuffix(s, "sh"):
		return s + "es"
	case strings.HasSuffix(s, "y") && (len(s) < 2 || !strings.ContainsRune("aeiou", rune(s[len(s)-2]))):
		return s[:len(s)-1] + "ies"
	default:
		return s + "s"
	}
}

// load reads who owns what, at least as of the position that is gone on from.
func (o *owners) load(ctx context.Context, c *Controller, w *watched, least client.Revision) error {
	list := w.list(w.view)
	list.Fields, list.AtLeast = w.fields, least
	objects, at, err := c.index.List(ctx, w.collection, list)
	if err != nil {
		return err
	}
	o.of, o.until = map[string][]string{}, at.Upper
	for _, obj := range objects {
		keys, err := w.ownerKeys(obj)
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			o.of[obj.Key] = keys
		}
	}
	return nil
}

// take returns the keys that a change concerns: those that own the object, and those that
// did. Unsure says that others may have owned it before.
func (o *owners) take(s step, now []string) (keys []string, unsure bool) {
	key := s.change.Object.Key
	was := o.of[key]
	if o.of == nil {
		o.of = map[string][]string{}
	}
	switch {
	case s.change.Object.Quarantined: // nobody can tell who owns it
	case len(now) == 0 || s.change.Deleted:
		delete(o.of, key)
	default:
		o.of[key] = now
	}
	// Of changes that are known one by one, an object loses an owner before it has another or goes.
	exact := !s.folded && (s.added || len(now) > 0 || s.change.Deleted && len(s.change.Object.Payload) > 0)
	unsure = !exact && !o.until.IsZero() && (s.at.Epoch == 0 || s.at.Compare(o.until) <= 0)
	keys = slices.Clone(now)
	for _, k := range was {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys, unsure
}

// forget begins again with a whole state, and returns who owned something before.
func (o *owners) forget() []string {
	seen := map[string]bool{}
	var all []string
	for _, keys := range o.of {
		for _, k := range keys {
			if !seen[k] {
				seen[k] = true
				all = append(all, k)
			}
		}
	}
	o.of, o.until = map[string][]string{}, client.Revision{}
	return all
}
