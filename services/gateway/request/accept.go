package request

import (
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// Form is how objects are written.
type Form uint8

// The forms.
const (
	// Full is the objects as they are.
	Full Form = iota
	// Metadata is them as PartialObjectMetadata.
	Metadata
	// MetadataProtobuf is PartialObjectMetadata in protobuf.
	MetadataProtobuf
	// Table is rows for people, in JSON.
	Table
)

const metaGroup = "meta.k8s.io"

// clause is one entry of an Accept header.
type clause struct {
	kind   string
	params map[string]string
	weight float64
}

// negotiate chooses the form that a client accepts in JSON; false where an API server might choose
// another encoding, or one that is not made here. A client that prefers protobuf and takes JSON of
// the same form gets JSON. Metadata are made in protobuf too.
func negotiate(h http.Header, v Verb) (Form, bool) {
	accept := strings.Join(h.Values("Accept"), ",")
	if accept == "" {
		return Full, true
	}
	clauses, ok := parseAccept(accept)
	if !ok || len(clauses) == 0 {
		return Full, false
	}
	want, ok := clauses[0].form(v)
	if !ok {
		return Full, false
	}
	for _, c := range clauses {
		if form, ok := c.form(v); ok && form == want && c.json() {
			return form, true
		}
	}
	if want == Metadata && slices.ContainsFunc(clauses, func(c clause) bool {
		form, ok := c.form(v)
		return ok && form == want && c.kind == runtime.ContentTypeProtobuf
	}) {
		return MetadataProtobuf, true
	}
	return Full, false
}

// takesObjects reports whether a client takes objects as they are too, in JSON.
func takesObjects(h http.Header, v Verb) bool {
	clauses, ok := parseAccept(strings.Join(h.Values("Accept"), ","))
	return ok && slices.ContainsFunc(clauses, func(c clause) bool {
		form, ok := c.form(v)
		return ok && form == Full && c.json()
	})
}

// parseAccept reads the clauses by weight, the heaviest first. Weights of zero are left to the API
// server.
func parseAccept(header string) ([]clause, bool) {
	var all []clause
	for text := range strings.SplitSeq(header, ",") {
		kind, params, err := mime.ParseMediaType(text)
		if err != nil {
			return nil, false
		}
		c := clause{kind: kind, params: params, weight: 1}
		if q, has := params["q"]; has {
			if c.weight, err = strconv.ParseFloat(q, 64); err != nil || !(c.weight > 0 && c.weight <= 1) {
				return nil, false
			}
			delete(params, "q")
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b clause) int {
		switch {
		case a.weight > b.weight:
			return -1
		case a.weight < b.weight:
			return 1
		}
		return 0
	})
	return all, true
}

func (c *clause) json() bool {
	return c.kind == "application/json" || c.kind == "*/*" || c.kind == "application/*"
}

// form is what the parameters of a clause ask for; false when it is none that is made here.
func (c *clause) form(v Verb) (Form, bool) {
	as := ""
	for name, value := range c.params {
		switch {
		case name == "as":
			as = value
		case name == "g" && value == metaGroup, name == "v" && value == "v1":
		case name == "charset" && strings.EqualFold(value, "utf-8"):
		case name == "stream" && value == "watch" && v == Watch:
		default:
			return Full, false
		}
	}
	switch {
	case as == "" && c.params["g"] == "" && c.params["v"] == "":
		return Full, true
	case c.params["g"] != metaGroup || c.params["v"] != "v1":
		return Full, false
	case as == "Table" && v != Get:
		return Table, true
	case as == "PartialObjectMetadataList" && v == List, as == "PartialObjectMetadata" && v != List:
		return Metadata, true
	}
	return Full, false
}

// takesGzip reports whether the client names gzip, as API servers look for it.
func takesGzip(h http.Header) bool {
	for text := range strings.SplitSeq(h.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(text), ";")
		if strings.TrimSpace(name) == "gzip" {
			return strings.ReplaceAll(weight, " ", "") != "q=0"
		}
	}
	return false
}
