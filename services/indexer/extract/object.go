package extract

import (
	"context"
	"errors"
	"fmt"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// What is wrong with a record whose payload was not looked into.
var (
	// errUnreadable is what the reflector says about an object it could not take in.
	errUnreadable = errors.New("the reflector could not read the object")
	errChecksum   = errors.New("payload does not match its checksum")
)

// hinted are the fields whose values records carry in their headers, by the
// name of the hint.
var hinted = map[string]string{"node": "spec.nodeName"}

// Object turns a record that carries an object into one of the store, which
// keeps the record's payload as it is. A payload that cannot be used makes it
// faulty, with the hints of the record's headers in place of facts, so that the
// key is still found, and refused, where it was.
func (x *Extractor) Object(ctx context.Context, r *delta.Record) *store.Object {
	return x.Checked(ctx, r, Check(r))
}

// Check tells what is wrong with a record's payload before it is looked into:
// that it is of no kind that is known, or is not the one that was published. It
// is for any goroutine.
func Check(r *delta.Record) error {
	switch r.Encoding {
	case delta.EncodingUnreadable:
		return errUnreadable
	case delta.EncodingJSON, "":
	default:
		return fmt.Errorf("encoding %q is not known", r.Encoding)
	}
	if !r.Intact() {
		return errChecksum
	}
	return nil
}

// Checked is Object of a record that was checked, and what came of it.
func (x *Extractor) Checked(ctx context.Context, r *delta.Record, fault error) *store.Object {
	o := store.ObjectConfig{
		Key: string(r.Key), UID: r.UID, RV: r.RV, Epoch: r.Epoch, Sequence: r.Sequence, Generation: r.Generation, Payload: r.Payload,
	}
	f, err := facts{}, fault
	if err == nil {
		f, err = x.record(ctx, r)
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
	var fields []store.Field
	for hint, name := range hinted {
		if values := r.Hints[hint]; len(values) > 0 && x.plan.Has(name) {
			fields = append(fields, store.Field{Name: name, Values: values})
		}
	}
	o.Fields = store.NewFields(fields)
	return store.NewObject(o)
}

func (x *Extractor) record(ctx context.Context, r *delta.Record) (facts, error) {
	f, err := x.read(ctx, r.Payload, r.Hash != 0)
	if err == nil && !f.isOf(string(r.Key)) {
		err = fmt.Errorf("payload is of key %q", f.keyText())
	}
	return f, err
}

// isOf reports whether the payload is that of a key.
func (f *facts) isOf(key string) bool {
	n := len(f.namespace)
	if n == 0 {
		return string(f.name) == key
	}
	return len(key) == n+1+len(f.name) && key[:n] == string(f.namespace) && key[n] == '/' && key[n+1:] == string(f.name)
}

func (f *facts) keyText() string { return string(delta.NewKey(string(f.namespace), string(f.name))) }

// Example turns the JSON of an object that need not exist into one to be
// compared with those of a store. It is validated.
func (x *Extractor) Example(ctx context.Context, payload []byte) (*store.Object, error) {
	f, err := x.read(ctx, payload, false)
	if err != nil {
		return nil, err
	}
	return store.NewObject(store.ObjectConfig{
		Key: f.keyText(), UID: string(f.uid), RV: string(f.rv), Labels: f.labels, Owners: f.owners, Fields: f.fields, Payload: payload,
	}), nil
}
