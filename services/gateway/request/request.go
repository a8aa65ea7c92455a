package request

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/fieldmask"
)

// Verb is what a read does.
type Verb string

// The verbs that an index can answer.
const (
	Get   Verb = "get"
	List  Verb = "list"
	Watch Verb = "watch"
)

// Resource is one resource of the API in one version.
type Resource struct {
	Group, Version, Name string
}

// IsNamespaces reports whether the resource is that of the namespaces themselves.
func (r Resource) IsNamespaces() bool { return r.Name == "namespaces" && r.Group == "" }

// Path is where a request goes: a resource, an object or a subresource.
type Path struct {
	Resource
	// Namespace is empty for all, and where the resource has none.
	Namespace string
	// Name of the object; empty for all.
	Name string
	// Subresource such as status; usually empty.
	Subresource string
}

// Match is how the resource version of a list is meant.
type Match string

// The matches. Any is of version "0", Recent of no version at all.
const (
	Recent       Match = "recent"
	Any          Match = "any"
	NotOlderThan Match = "NotOlderThan"
	Exact        Match = "Exact"
)

// Read is a request that an index can answer.
type Read struct {
	Path
	Verb Verb
	// Namespaced says that the resource's objects have namespaces. It is not in the request.
	Namespaced bool
	// Scope is what of the resource its sender may see; nil is all. It is not in the request.
	Scope *access.Scope
	// Form is how objects are to be written.
	Form Form
	// Mask is the fields that objects keep of the full form; nil keeps all.
	Mask *fieldmask.Mask
	// Objects says that a client that asks for a Table takes objects as they are too.
	Objects bool
	// Object is what the rows of a Table have of their objects: None, Metadata, or Object.
	Object metav1.IncludeObjectPolicy
	// Gzip says that the client takes a compressed answer.
	Gzip bool

	// Labels and Fields choose objects; nil chooses all. LabelText and FieldText are as they came.
	Labels               labels.Selector
	Fields               fields.Selector
	LabelText, FieldText string
	// Declared are fields of Fields by which no API server is known to select. A read that has some
	// comes with the reason [Selector].
	Declared []string

	// Match and Version are how recent the answer must be. A watch begins behind Version where
	// Match is Exact, and else with the state.
	Match   Match
	Version uint64
	// Limit is the most objects of a page; 0 is no limit.
	Limit int64
	// After is the key behind which a page begins, of a continue token; its version is Version.
	After string

	// Bookmarks: the client wants them.
	Bookmarks bool
	// Initial: the state comes first, and its end is marked.
	Initial bool
	// Timeout of a watch; 0 leaves it to the server.
	Timeout time.Duration
}

// Key of the object at the path.
func (p *Path) Key() string { return string(delta.NewKey(p.Namespace, p.Name)) }

// Single is the name that a field selector requires; empty when it requires none. An API server
// decides by it who may list and watch.
func (r *Read) Single() string {
	if r.Fields == nil {
		return ""
	}
	name, _ := r.Fields.RequiresExactMatch("metadata.name")
	return name
}

// ParsePath reads the path of a request; false when it is that of no resource. Legacy watches,
// below /watch, are none.
func ParsePath(u *url.URL) (p Path, ok bool) {
	if u.RawPath != "" { // escaped characters are in no name
		return p, false
	}
	rest, ok := strings.CutPrefix(u.Path, "/")
	if !ok {
		return p, false
	}
	parts := strings.Split(rest, "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		p.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		p.Group, p.Version, parts = parts[1], parts[2], parts[3:]
		if p.Group == "" {
			return p, false
		}
	default:
		return p, false
	}
	if parts[0] == "watch" || parts[0] == "proxy" || slices.ContainsFunc(parts, odd) || odd(p.Version) {
		return p, false
	}
	itself := p.Group == "" && (len(parts) < 3 || len(parts) == 3 && namespaceSubresource(parts[2]))
	if parts[0] == "namespaces" && !itself {
		if len(parts) < 3 {
			return p, false
		}
		p.Namespace, parts = parts[1], parts[2:]
	}
	p.Resource.Name = parts[0]
	if len(parts) > 1 {
		p.Name = parts[1]
	}
	if len(parts) > 2 { // what follows is a path of the subresource's own
		p.Subresource = parts[2]
	}
	return p, true
}

func odd(part string) bool { return part == "" || part == "." || part == ".." }

func namespaceSubresource(name string) bool { return name == "status" || name == "finalize" }

// Selector is why a read may not be answered whose selector is not known here. One by declared
// fields, see [Read.Declared], may be where the index has them.
const Selector = "selector"

// Alone reports whether an API server may have no answer to the read, but an index.
func (r *Read) Alone() bool { return r.Scope != nil || len(r.Declared) > 0 }

// Parse reads a request that an index may answer. The reason says why it may not; it is one of few
// words, for metrics, and empty when it may.
func Parse(r *http.Request) (read *Read, reason string) {
	p, ok := ParsePath(r.URL)
	switch {
	case !ok:
		return nil, "path"
	case r.Method != http.MethodGet:
		return nil, "method"
	case p.Subresource != "":
		return nil, "subresource"
	case r.Header.Get("Upgrade") != "":
		return nil, "upgrade"
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, "parameter"
	}
	for name, values := range q {
		if len(values) != 1 || !known(name) {
			return nil, "parameter"
		}
	}
	include, includes := q.Get("includeObject"), q.Has("includeObject")
	q.Del("includeObject")
	read = &Read{Path: p, Verb: List, Gzip: takesGzip(r.Header)}
	isWatch, ok := boolean(q.Get("watch"))
	if !ok {
		return nil, "parameter"
	}
	// Clients name how long they wait; nothing takes that long here.
	if s := q.Get("timeout"); q.Has("timeout") {
		if d, err := time.ParseDuration(s); err != nil || d < time.Second {
			return nil, "parameter"
		}
		q.Del("timeout")
	}
	switch {
	case p.Name != "" && (len(q) > 1 || len(q) == 1 && !q.Has("resourceVersion")):
		return nil, "parameter"
	case p.Name != "":
		read.Verb = Get
	case isWatch:
		read.Verb = Watch
	}
	if read.Form, ok = negotiate(r.Header, read.Verb); !ok {
		return nil, "encoding"
	}
	if !read.rows(include, includes) {
		return nil, "parameter"
	}
	read.Objects = read.Form == Table && takesObjects(r.Header, read.Verb)
	if !read.choose(q) {
		return nil, Selector
	}
	if read.Verb == Watch {
		ok = read.watch(q)
	} else {
		ok = read.list(q)
	}
	switch {
	case !ok:
		return nil, "parameter"
	case len(read.Declared) > 0:
		return read, Selector
	}
	return read, ""
}

// rows reads what the rows of a Table have beside their cells.
func (r *Read) rows(include string, has bool) bool {
	if r.Form != Table {
		return !has
	}
	switch r.Object = metav1.IncludeObjectPolicy(include); r.Object {
	case "":
		r.Object = metav1.IncludeMetadata
		return !has
	case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
		return true
	}
	return false
}

func known(name string) bool {
	switch name {
	case "labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch", "watch", "allowWatchBookmarks",
		"sendInitialEvents", "timeoutSeconds", "timeout", "includeObject":
		return true
	}
	return false
}

// boolean reads a parameter as the values that mean the same to every API server.
func boolean(s string) (value, ok bool) {
	switch s {
	case "", "0", "false":
		return false, true
	case "1", "true":
		return true, true
	}
	return false, false
}

func (r *Read) choose(q url.Values) bool {
	var err error
	if r.LabelText = q.Get("labelSelector"); r.LabelText != "" {
		if r.Labels, err = labels.Parse(r.LabelText); err != nil {
			return false
		}
	}
	if r.FieldText = q.Get("fieldSelector"); r.FieldText != "" {
		if r.Fields, err = fields.ParseSelector(r.FieldText); err != nil {
			return false
		}
		for _, one := range r.Fields.Requirements() {
			if _, ok := FieldPath(r.Resource, one.Field); ok {
				continue
			}
			if !plain(one.Field) {
				return false
			}
			r.Declared = append(r.Declared, one.Field)
		}
	}
	return true
}

// version reads a resource version: a number without anything around it.
func version(s string) (uint64, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 63)
	return n, err == nil
}

func (r *Read) list(q url.Values) bool {
	if q.Has("allowWatchBookmarks") || q.Has("sendInitialEvents") {
		return false
	}
	if s := q.Get("timeoutSeconds"); s != "" {
		if _, ok := version(s); !ok {
			return false
		}
	}
	if s := q.Get("limit"); s != "" {
		n, ok := version(s)
		if !ok {
			return false
		}
		r.Limit = int64(n)
	}
	rv, match := q.Get("resourceVersion"), q.Get("resourceVersionMatch")
	if token := q.Get("continue"); token != "" {
		if rv != "" || match != "" {
			return false
		}
		var ok bool
		if r.After, r.Version, ok = parseToken(token); !ok {
			return false
		}
		r.After = string(delta.NewKey(r.Namespace, r.After))
		r.Match = Exact
		return true
	}
	var ok bool
	if r.Version, ok = version(rv); !ok && rv != "" {
		return false
	}
	switch {
	case match == string(Exact) && r.Version > 0:
		r.Match = Exact
	case match != "" && (match != string(NotOlderThan) || rv == ""):
		return false
	case rv == "":
		r.Match = Recent
	case r.Version == 0:
		r.Match = Any
		r.Limit = 0 // as upstream, whose cache then answers with everything
	case r.Limit > 0 && match == "": // the legacy meaning of a page of a version
		r.Match = Exact
	default:
		r.Match = NotOlderThan
	}
	return true
}

func (r *Read) watch(q url.Values) bool {
	var ok bool
	if q.Has("limit") || q.Has("continue") {
		return false
	}
	if r.Bookmarks, ok = boolean(q.Get("allowWatchBookmarks")); !ok || r.Bookmarks && r.Form == Table { // a row of nothing
		return false
	}
	if s := q.Get("timeoutSeconds"); s != "" {
		n, ok := version(s)
		const most = 24 * 60 * 60
		if !ok || n > most {
			return false
		}
		r.Timeout = time.Duration(n) * time.Second
	}
	rv, match := q.Get("resourceVersion"), q.Get("resourceVersionMatch")
	if r.Version, ok = version(rv); !ok && rv != "" {
		return false
	}
	if s := q.Get("sendInitialEvents"); s != "" {
		if r.Initial, ok = boolean(s); !ok || !r.Initial || match != string(NotOlderThan) || !r.Bookmarks {
			return false
		}
	} else if match != "" {
		return false
	}
	switch {
	case rv == "":
		r.Match = Recent
	case r.Version == 0:
		r.Match = Any
	case r.Initial:
		r.Match = NotOlderThan
	default:
		r.Match = Exact
	}
	return true
}
