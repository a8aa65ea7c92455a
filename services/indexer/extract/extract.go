// Package extract reads from payloads what selectors and indexes need, at
// ingest, once: namespace, name, UID, resource version, labels, owners, and the
// values of a collection's declared fields.
//
// A payload is walked once, by a scanner that goes into what is wanted and
// skips the rest; nothing is decoded unless an expression needs the whole
// object. A payload with the checksum of its record is the one that the
// reflector has validated, so it is not validated again; any other is. Whatever
// the bytes are, nothing outside them is read and nothing panics.
package extract

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	kjson "sigs.k8s.io/json"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/jsonscan"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

// What is wrong with a payload that cannot be used.
var (
	errNotJSON    = errors.New("payload is not a JSON object")
	errNoMetadata = errors.New("metadata is not a JSON object")
	errTooDeep    = fmt.Errorf("payload nests deeper than %d", delta.MaxDepth)
	errCut        = errors.New("payload ends or breaks off inside a value")
)

// Extractor reads payloads by a plan. Objects made from one template share
// label sets, owners and field values through it; what it remembers is bounded.
// It is for one goroutine.
type Extractor struct {
	plan     *Plan
	scan     scan
	strings  cache[string] // by what is in the payload
	results  cache[string] // of expressions
	labels   cache[*store.Labels]
	owners   cache[*store.Owners]
	fields   cache[*store.Fields]
	readings cache[*store.Reading] // one field, by its place in the plan and what is in the payload
	key      []byte                // scratch, as the rest
	ends     []int
	list     []*store.Reading
}

// New returns an extractor.
func New(plan *Plan) *Extractor {
	x := &Extractor{}
	x.Follow(plan)
	return x
}

// Follow makes the extractor read by another plan from now on.
func (x *Extractor) Follow(plan *Plan) {
	if x.plan == plan {
		return
	}
	// Most objects have sets of fields of their own, which share readings.
	x.plan, x.fields, x.readings = plan, cache[*store.Fields]{most: 1 << 12}, cache[*store.Reading]{}
	x.scan.paths = plan.paths
	x.scan.spans, x.scan.errs = make([][]span, len(plan.paths)), make([]error, len(plan.paths))
}

// Plan is what the extractor reads by.
func (x *Extractor) Plan() *Plan { return x.plan }

// facts are what is found in a payload; names refer to it.
type facts struct {
	namespace, name, uid, rv []byte
	labels                   *store.Labels
	owners                   *store.Owners
	fields                   *store.Fields
}

// Fields reads the declared fields of a payload that is known to be JSON.
func (x *Extractor) Fields(ctx context.Context, payload []byte) (*store.Fields, error) {
	f, err := x.read(ctx, payload, true)
	return f.fields, err
}

// read finds the facts of a payload. One that is not trusted is validated.
func (x *Extractor) read(ctx context.Context, payload []byte, trusted bool) (facts, error) {
	if !trusted {
		if err := jsonscan.Valid(payload, delta.MaxDepth); err != nil {
			return facts{}, cmp.Or(tooDeep(err), errNotJSON)
		}
	}
	if x.plan.slow {
		return x.decode(ctx, payload)
	}
	s := &x.scan
	s.begin(payload)
	defer s.Reset(nil)
	if s.Peek() != '{' {
		return facts{}, errNotJSON
	}
	err := s.visit(x.plan.root, 0)
	if errors.Is(err, errTwice) {
		return x.decode(ctx, payload)
	}
	if err != nil {
		return facts{}, cmp.Or(tooDeep(err), fmt.Errorf("%w: %w", errCut, err))
	}
	if s.End() != nil {
		return facts{}, errNotJSON
	}
	return x.facts(ctx, payload)
}

// tooDeep is the scanner's error in our words, if it is that one.
func tooDeep(err error) error {
	if errors.Is(err, jsonscan.ErrDepth) {
		return errTooDeep
	}
	return nil
}

// facts reads what the scan has marked.
func (x *Extractor) facts(ctx context.Context, payload []byte) (facts, error) {
	var f facts
	if meta := x.marked(metadataMark); len(meta) == 0 || meta[0] != '{' {
		return f, errNoMetadata
	}
	for _, text := range []struct {
		mark int
		to   *[]byte
	}{{namespaceMark, &f.namespace}, {nameMark, &f.name}, {uidMark, &f.uid}, {rvMark, &f.rv}} {
		raw := x.marked(text.mark)
		if len(raw) < 2 || raw[0] != '"' {
			continue
		}
		*text.to = raw[1 : len(raw)-1]
		if !jsonscan.Plain(raw) {
			s, err := jsonscan.Unquote(raw)
			if err != nil {
				return f, err
			}
			*text.to = []byte(s)
		}
	}
	var err error
	if f.labels, err = x.labelSet(x.marked(labelsMark)); err != nil {
		return f, err
	}
	if f.owners, err = x.ownerList(x.marked(ownersMark)); err != nil {
		return f, err
	}
	f.fields = x.fieldSet(ctx, payload)
	return f, nil
}

// marked is the value that the scan has noted, empty when there is none.
func (x *Extractor) marked(mark int) []byte {
	m := x.scan.marks[mark]
	return x.scan.Text()[m.from:m.to]
}

// fieldSet returns the fields of the payload that was scanned.
func (x *Extractor) fieldSet(ctx context.Context, payload []byte) *store.Fields {
	if len(x.plan.names) == 0 {
		return nil
	}
	x.key, x.ends = x.key[:0], x.ends[:0]
	for i, spans := range x.scan.spans {
		x.key = binary.AppendUvarint(x.key, uint64(i))
		for _, at := range spans {
			x.key = append(binary.AppendUvarint(x.key, uint64(at.to-at.from)), payload[at.from:at.to]...)
		}
		x.key = append(x.key, 0)
		x.ends = append(x.ends, len(x.key))
	}
	results := x.evaluate(ctx, payload)
	for i, r := range results {
		x.key = binary.AppendUvarint(x.key, uint64(len(x.scan.spans)+i))
		for _, v := range r.Values {
			x.key = append(binary.AppendUvarint(x.key, uint64(len(v))+1), v...)
		}
		x.key = append(x.key, 0)
		x.ends = append(x.ends, len(x.key))
	}
	failed := false
	for i := range x.ends {
		failed = failed || x.fault(i, results) != nil
	}
	if !failed {
		if set, ok := x.fields.get(x.key); ok {
			return set
		}
	}
	list, from := x.list[:0], 0
	for i, to := range x.ends {
		key, known := x.key[from:to], (*store.Reading)(nil)
		if x.fault(i, results) == nil { // else the key is that of a field without values
			known, _ = x.readings.get(key)
		}
		if known == nil {
			f := x.field(payload, i, results)
			if known = store.NewReading(f); f.Err == nil {
				x.readings.put(key, known)
			}
			failed = failed || f.Err != nil
		}
		list, from = append(list, known), to
	}
	set := store.JoinFields(list)
	clear(list)
	x.list = list[:0]
	if !failed {
		x.fields.put(x.key, set)
	}
	return set
}

// fault says what the scan or an expression has found wrong with a field.
func (x *Extractor) fault(i int, results []store.Field) error {
	if n := len(x.scan.spans); i >= n {
		return results[i-n].Err
	}
	return x.scan.errs[i]
}

// field reads one field of the plan.
func (x *Extractor) field(payload []byte, i int, results []store.Field) store.Field {
	if n := len(x.scan.spans); i >= n {
		return results[i-n]
	}
	f := store.Field{Name: x.plan.names[i], Err: x.scan.errs[i]}
	if spans := x.scan.spans[i]; f.Err == nil && len(spans) > 0 {
		f.Values, f.Err = x.values(payload, spans)
	}
	return f
}

// values reads the scalars at spans.
func (x *Extractor) values(payload []byte, spans []span) ([]string, error) {
	values := make([]string, 0, len(spans))
	for _, at := range spans {
		v, err := x.scalar(payload[at.from:at.to], len(spans) > 1)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", definition.ErrValue, err)
		}
		values = append(values, v)
	}
	return definition.Bound(values)
}

// evaluate runs the plan's expressions on the decoded payload.
func (x *Extractor) evaluate(ctx context.Context, payload []byte) []store.Field {
	if len(x.plan.programs) == 0 {
		return nil
	}
	results := make([]store.Field, len(x.plan.programs))
	var doc any
	err := kjson.UnmarshalCaseSensitivePreserveInts(payload, &doc)
	for i, g := range x.plan.programs {
		results[i] = store.Field{Name: g.Field(), Err: err}
		if err == nil {
			results[i].Values, results[i].Err = g.Values(ctx, doc)
		}
		for j, v := range results[i].Values {
			results[i].Values[j] = x.intern(v)
		}
	}
	return results
}

// text is the value of a scalar: that of a string, or a number or boolean as it
// is written.
func (x *Extractor) text(raw []byte) (string, error) { return x.scalar(raw, true) }

// scalar is text, of what may be remembered already as part of something else.
func (x *Extractor) scalar(raw []byte, remember bool) (string, error) {
	if s, ok := x.strings.get(raw); ok {
		return s, nil
	}
	s, err := string(raw), error(nil)
	if len(raw) > 0 && raw[0] == '"' {
		s, err = jsonscan.Unquote(raw)
	}
	if remember && err == nil && len(raw) <= definition.MaxValueBytes {
		x.strings.put(raw, s)
	}
	return s, err
}

// intern returns the one string that is equal to s.
func (x *Extractor) intern(s string) string {
	raw := unsafe.Slice(unsafe.StringData(s), len(s)) // only read
	if known, ok := x.results.get(raw); ok {
		return known
	}
	x.results.put(raw, s)
	return s
}
