package extract

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/deltaplane/deltaplane/core/store"
)

// decode finds the facts of a payload the slow way: it is for payloads in which
// a key that matters comes twice, where the last one counts, and for plans that
// are too wide for the scan.
func (x *Extractor) decode(ctx context.Context, payload []byte) (facts, error) {
	var f facts
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	var doc map[string]any
	if err := d.Decode(&doc); err != nil || doc == nil {
		return f, errNotJSON
	}
	meta, ok := doc["metadata"].(map[string]any)
	if !ok {
		return f, errNoMetadata
	}
	for name, to := range map[string]*[]byte{"namespace": &f.namespace, "name": &f.name, "uid": &f.uid, "resourceVersion": &f.rv} {
		if s, ok := meta[name].(string); ok {
			*to = []byte(s)
		}
	}
	// What was decoded is written again without what came twice, and read as usual.
	for name, read := range map[string]func([]byte) error{
		"labels":          func(raw []byte) (err error) { f.labels, err = x.labelSet(raw); return err },
		"ownerReferences": func(raw []byte) (err error) { f.owners, err = x.ownerList(raw); return err },
	} {
		raw, err := json.Marshal(meta[name])
		if err != nil {
			return f, fmt.Errorf("metadata.%s: %w", name, err)
		}
		if err := read(raw); err != nil {
			return f, err
		}
	}
	fields := make([]store.Field, 0, len(x.plan.names))
	for i, p := range x.plan.paths {
		values, err := p.Values(doc)
		fields = append(fields, store.Field{Name: x.plan.names[i], Values: values, Err: err})
	}
	f.fields = store.NewFields(append(fields, x.evaluate(ctx, payload)...))
	return f, nil
}
