package reflector

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Resource is one collection to mirror, or all of them, and in which form. Its fields are those of
// the ReflectionSpec that AddReflection takes.
type Resource struct {
	// Cluster by its name in [Config]. Empty in a configuration means every cluster of it.
	Cluster string
	// Name is "resource", "resource.group", "resource.version" or "resource.version.group"; what is
	// left out is found by discovery. "*" is everything that can be watched, except secrets, the copy
	// of events in events.k8s.io, and what is named beside it. With namespaces it leaves out what has
	// none.
	Name string
	// Scope narrows the collection; one resource has one scope.
	Scope kube.Scope
	// Namespaces narrow it to several. One alone is the same as Scope.Namespace; beside that the list
	// must hold just that one. Several are read from one list and one watch of the whole cluster,
	// which needs permission for all of it.
	Namespaces []string
	// MetadataOnly mirrors PartialObjectMetadata: the API server sends, and the log holds, no spec and
	// no status.
	MetadataOnly bool
	// Transform of the objects. Without hints, pods carry their node; without labels, objects carry
	// those by which jobs find their pods.
	Transform kube.Transform
}

// defaultHints are the index hints that records carry in their headers, by plural resource name.
var defaultHints = map[string]map[string]string{
	"pods": {"node": "spec.nodeName"},
}

// defaultLabels are the labels that records carry in their headers: those by which controllers find
// what they own.
var defaultLabels = []string{"batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"}

// everything is the name of all resources together.
const everything = "*"

var (
	versionForm  = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]+)?$`)
	resourceForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	pathForm     = regexp.MustCompile(`^([A-Za-z0-9_$/-]|\\\.)+(\.([A-Za-z0-9_$/-]|\\\.)+)*$`)
	hintForm     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

// What a resource may ask for at most.
const (
	maxSelectorBytes = 4096
	maxPathBytes     = 512
	maxDropped       = 64
	maxHints         = 16
	maxHeaderLabels  = 32
	maxNamespaces    = 1000
)

// identity are the fields no transform may take out: nothing could be mirrored without them.
var identity = []string{
	"kind", "apiVersion", "metadata", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion",
}

// parts splits the name; version and group are empty when they are left out.
func (r Resource) parts() (resource, version, group string) {
	resource, rest, _ := strings.Cut(r.Name, ".")
	first, after, _ := strings.Cut(rest, ".")
	if versionForm.MatchString(first) {
		return resource, first, after
	}
	return resource, "", rest
}

// String names the resource as people write it.
func (r Resource) String() string {
	if r.Cluster == "" {
		return r.Name
	}
	return r.Cluster + "/" + r.Name
}

// secrets reports whether the resource is named as the secrets of the core group are. Discovery may
// find these under another name.
func (r Resource) secrets() bool {
	resource, _, group := r.parts()
	return resource == "secrets" && group == ""
}

// secret reports whether a resource is the secrets of the core group.
func secret(res kube.Resource) bool { return res.Group == "" && res.Name == "secrets" }

func (r Resource) validate() error {
	var errs []error
	for _, f := range r.faults() {
		errs = append(errs, fmt.Errorf("reflector: resource %q: %s: %s", r.String(), f.Field, f.Description))
	}
	return errors.Join(errs...)
}

// faults are all that is wrong with r, each under the name of the field in the ReflectionSpec.
func (r Resource) faults() []*rpc.FieldError {
	var out []*rpc.FieldError
	fault := func(field, format string, args ...any) {
		out = append(out, &rpc.FieldError{Field: field, Description: fmt.Sprintf(format, args...)})
	}
	if r.Cluster != "" {
		if err := checkCluster(r.Cluster); err != nil {
			fault("cluster", "%v", err)
		}
	}
	if wrong := wrongName(r.Name); wrong != "" {
		fault("resource", "%.100q: want name[.version][.group]: %s", r.Name, wrong)
	}
	r.namespaceFaults(fault)
	for _, s := range []struct {
		field, text string
		parse       func(string) error
	}{
		{"label_selector", r.Scope.LabelSelector, func(s string) error { _, err := labels.Parse(s); return err }},
		{"field_selector", r.Scope.FieldSelector, func(s string) error { _, err := fields.ParseSelector(s); return err }},
	} {
		if len(s.text) > maxSelectorBytes {
			fault(s.field, "is %d bytes long, at most %d", len(s.text), maxSelectorBytes)
		} else if err := s.parse(s.text); err != nil {
			fault(s.field, "%.100q does not parse: %v", s.text, err)
		}
	}
	if n := len(r.Transform.Drop); n > maxDropped {
		fault("drop_fields", "has %d entries, at most %d", n, maxDropped)
	}
	for i, path := range r.Transform.Drop {
		field := fmt.Sprintf("drop_fields[%d]", i)
		if err := checkPath(path); err != nil {
			fault(field, "%v", err)
		} else if slices.Contains(identity, path) {
			fault(field, "%q cannot be taken out: nothing could be mirrored without it", path)
		}
	}
	if n := len(r.Transform.Hints); n > maxHints {
		fault("hints", "has %d entries, at most %d", n, maxHints)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Transform.Hints)) {
		if !hintForm.MatchString(name) {
			fault("hints", "%.100q is not a lower-case DNS label of at most 63 characters", name)
		}
		path := r.Transform.Hints[name]
		if err := checkPath(path); err != nil {
			fault("hints", "%.100q: %v", name, err)
		} else if r.MetadataOnly && !strings.HasPrefix(path, "metadata.") {
			fault("hints", "%.100q: %.100q is not in the metadata, and metadata_only mirrors nothing else", name, path)
		}
	}
	if n := len(r.Transform.Labels); n > maxHeaderLabels {
		fault("labels", "has %d entries, at most %d", n, maxHeaderLabels)
	}
	for i, name := range r.Transform.Labels {
		if wrong := validation.IsQualifiedName(name); len(wrong) > 0 {
			fault(fmt.Sprintf("labels[%d]", i), "%.100q is not the name of a label: %s", name, strings.Join(wrong, "; "))
		}
	}
	return out
}

// wrongName says what is wrong with the name of a resource.
func wrongName(name string) string {
	odd := strings.IndexFunc(name, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' })
	switch {
	case name == everything:
	case name == "":
		return "it is empty"
	case len(name) > 253:
		return fmt.Sprintf("it is %d bytes long, at most 253", len(name))
	case odd >= 0:
		c, _ := utf8.DecodeRuneInString(name[odd:])
		return fmt.Sprintf("%q is no lower-case letter, digit or hyphen", c)
	case !resourceForm.MatchString(name):
		return "each part begins and ends with a letter or digit"
	}
	return ""
}

func checkPath(path string) error {
	if len(path) > maxPathBytes {
		return fmt.Errorf("is %d bytes long, at most %d", len(path), maxPathBytes)
	}
	if !pathForm.MatchString(path) {
		return fmt.Errorf(`%.100q is not a path such as status.images; "\." is a dot inside a name`, path)
	}
	return nil
}

func checkCluster(name string) error {
	if name == "" || len(name) > 253 || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == '%' || r == '*' || r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("%.100q: want a name in UTF-8 without slashes, percent signs, asterisks and spaces", name)
	}
	return nil
}

// complete fills in what the resource's default is, and brings everything whose order does not
// matter into order.
func (r Resource) complete() Resource {
	r = r.placed()
	t := &r.Transform
	if len(t.Hints) == 0 {
		resource, _, _ := r.parts()
		t.Hints = defaultHints[resource]
	}
	if len(t.Labels) == 0 {
		t.Labels = defaultLabels
	}
	t.Labels = ordered(t.Labels)
	t.Drop = ordered(t.Drop)
	if r.MetadataOnly { // there is nothing to read the defaults from
		t.Hints = maps.Clone(t.Hints)
		maps.DeleteFunc(t.Hints, func(_, path string) bool { return !strings.HasPrefix(path, "metadata.") })
	}
	return r
}

// dropped are the paths of the fields that the log's objects lack, for its readers.
func (r Resource) dropped() []string {
	if r.MetadataOnly {
		return append(r.Transform.Dropped(), delta.EverythingButMetadata)
	}
	return r.Transform.Dropped()
}

// all reports whether every object of the resource is mirrored.
func (r Resource) all() bool { return r.Scope == (kube.Scope{}) && len(r.Namespaces) == 0 }

func ordered(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// form is what decides which objects are in the log, and what a record holds of one.
type form struct {
	Namespace     string   `json:"namespace,omitempty"`
	Namespaces    []string `json:"namespaces,omitempty"`
	LabelSelector string   `json:"label_selector,omitempty"`
	FieldSelector string   `json:"field_selector,omitempty"`
	MetadataOnly  bool     `json:"metadata_only,omitempty"`
	Drop          []string `json:"drop_fields,omitempty"`
	KeepManaged   bool     `json:"keep_managed_fields,omitempty"`
	// LastApplied is always written: a spec without it is of a version that dropped it by default.
	LastApplied bool              `json:"last_applied"`
	Hints       map[string]string `json:"hints,omitempty"`
	Labels      []string          `json:"labels,omitempty"`
}

// longFingerprint is the length from which a hash replaces the rest: every renewal of a lease
// carries it.
const longFingerprint = 512

// fingerprint is the scope and the form as one line: equal forms have equal texts, also when they
// are written differently, and different forms have different ones. It is made for people to
// compare.
func (r Resource) fingerprint() string {
	r = r.complete()
	t := &r.Transform
	f := form{
		Namespace: r.Scope.Namespace, Namespaces: r.Namespaces,
		LabelSelector: canonicalLabels(r.Scope.LabelSelector), FieldSelector: canonicalFields(r.Scope.FieldSelector),
		MetadataOnly: r.MetadataOnly, Drop: t.Drop, KeepManaged: t.KeepManagedFields, LastApplied: !t.DropLastApplied,
		Hints: t.Hints, Labels: t.Labels,
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(f) // strings and maps of strings cannot fail
	text := strings.TrimSpace(b.String())
	if len(text) > longFingerprint {
		sum := sha256.Sum256([]byte(text))
		text = strings.ToValidUTF8(text[:longFingerprint-40], "") + "... sha256:" + hex.EncodeToString(sum[:12])
	}
	return text
}

// apart are the fields in which two fingerprints differ, as each has them. One that was shortened
// is given in whole.
func apart(theirs, mine string) (string, string) {
	var a, b map[string]json.RawMessage
	if json.Unmarshal([]byte(theirs), &a) != nil || json.Unmarshal([]byte(mine), &b) != nil {
		return theirs, mine
	}
	var left, right []string
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	for _, name := range ordered(names) {
		if string(a[name]) != string(b[name]) {
			left = append(left, name+" "+valueOr(a[name], b[name]))
			right = append(right, name+" "+valueOr(b[name], a[name]))
		}
	}
	return strings.Join(left, ", "), strings.Join(right, ", ")
}

// valueOr is a value of a fingerprint; one that is left out is the empty one of the other's kind.
func valueOr(v, other json.RawMessage) string {
	if len(v) > 0 {
		return string(v)
	}
	switch other[0] {
	case '"':
		return `""`
	case '[':
		return "[]"
	case '{':
		return "{}"
	}
	return "false"
}

func canonicalLabels(s string) string {
	parsed, err := labels.Parse(s)
	if err != nil {
		return s // it was refused before
	}
	return parsed.String()
}

func canonicalFields(s string) string {
	parsed, err := fields.ParseSelector(s)
	if err != nil {
		return s
	}
	var terms []string
	for _, q := range parsed.Requirements() {
		terms = append(terms, q.Field+string(cmp.Or(q.Operator, "="))+fields.EscapeValue(q.Value))
	}
	return strings.Join(ordered(terms), ",")
}
