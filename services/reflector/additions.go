package reflector

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// additions are what callers made of one cluster.
type additions struct {
	reflections []addition
	// removals are the logs to be deleted once nobody leads them: by the collection's whole name, from
	// when on.
	removals map[string]time.Time
}

// addition is one reflection that was added.
type addition struct {
	Resource
	// err says why this version cannot use it. A newer version may have written it.
	err error

	raw json.RawMessage // as it was read
}

// additionsVersion is the version of the form in which additions are kept; maxAdditionsBytes bounds
// a value, of which NATS takes up to 1 MiB.
const (
	additionsVersion  = 1
	maxAdditionsBytes = 512 << 10
)

type storedAdditions struct {
	Version     int                  `json:"version"`
	Reflections []json.RawMessage    `json:"reflections"`
	Removals    map[string]time.Time `json:"removals,omitempty"`
}

// remove asks for a log to be deleted.
func (a *additions) remove(collection string, after time.Time) {
	if a.removals == nil {
		a.removals = map[string]time.Time{}
	}
	a.removals[collection] = after.Truncate(time.Second).UTC()
}

// encode writes what decodeAdditions reads. What this version cannot use stays as it was read.
func (a *additions) encode() ([]byte, error) {
	out := storedAdditions{Version: additionsVersion, Reflections: []json.RawMessage{}, Removals: a.removals}
	for _, x := range a.reflections {
		raw := x.raw
		if raw == nil {
			var err error
			if raw, err = protojson.Marshal(x.proto()); err != nil {
				return nil, fmt.Errorf("write reflection %s: %w", x.Resource, err)
			}
		}
		out.Reflections = append(out.Reflections, raw)
	}
	value, err := json.Marshal(out)
	if err == nil && len(value) > maxAdditionsBytes {
		err = fmt.Errorf("%w: they would take %d bytes, at most %d", errTooMany, len(value), maxAdditionsBytes)
	}
	return value, err
}

// decodeAdditions reads a set; no bytes are an empty one. A reflection that cannot be read or is
// wrong has an err and harms no other.
func decodeAdditions(value []byte) (additions, error) {
	if len(value) == 0 {
		return additions{}, nil
	}
	var in storedAdditions
	if err := json.Unmarshal(value, &in); err != nil {
		return additions{}, fmt.Errorf("read the reflections that were added: %w", err)
	}
	if in.Version != additionsVersion {
		return additions{}, fmt.Errorf("read the reflections that were added: version %d is not known", in.Version)
	}
	set := additions{removals: in.Removals}
	for _, raw := range in.Reflections {
		x := addition{raw: slices.Clone(raw)}
		var p reflectorv1.ReflectionSpec
		if x.err = protojson.Unmarshal(raw, &p); x.err == nil {
			x.Resource = fromProto(&p)
			x.err = x.validate()
		}
		set.reflections = append(set.reflections, x)
	}
	return set, nil
}

func fromProto(p *reflectorv1.ReflectionSpec) Resource {
	return Resource{
		Cluster: p.GetCluster(), Name: p.GetResource(), MetadataOnly: p.GetMetadataOnly(),
		Scope:      kube.Scope{Namespace: p.GetNamespace(), LabelSelector: p.GetLabelSelector(), FieldSelector: p.GetFieldSelector()},
		Namespaces: p.GetNamespaces(),
		Transform: kube.Transform{
			KeepManagedFields: p.GetKeepManagedFields(), DropLastApplied: p.GetDropLastApplied(), Drop: p.GetDropFields(),
			Hints: p.GetHints(), Labels: p.GetLabels(),
		},
	}
}

// proto writes what fromProto reads. One namespace is written as namespace: processes that know no
// set read it too, and refuse one of several rather than mirror all.
func (r Resource) proto() *reflectorv1.ReflectionSpec {
	r = r.placed()
	t := &r.Transform
	return &reflectorv1.ReflectionSpec{
		Cluster: r.Cluster, Resource: r.Name, MetadataOnly: r.MetadataOnly,
		Namespace: r.Scope.Namespace, Namespaces: r.Namespaces, LabelSelector: r.Scope.LabelSelector, FieldSelector: r.Scope.FieldSelector,
		DropFields: slices.Clone(t.Drop), KeepManagedFields: t.KeepManagedFields, DropLastApplied: t.DropLastApplied,
		Hints: maps.Clone(t.Hints), Labels: slices.Clone(t.Labels),
	}
}

// invalid is the faults of a spec as an error about the field of a request; nil when there are
// none.
func invalid(field string, faults []*rpc.FieldError) error {
	var errs []error
	for _, f := range faults {
		errs = append(errs, rpc.InvalidArgument(field+"."+f.Field, f.Description))
	}
	return errors.Join(errs...)
}
