package reflector_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fleet is a scripted API server with many resources that come and go. Its lists and watches hold
// the objects that put and remove leave in it.
type fleet struct {
	*httptest.Server

	mu     sync.Mutex
	rv     int
	kinds  []*kind
	counts map[string]int // requests by path, "watch " before those of watches
	asked  []seen
}

type seen struct {
	path, accept string
	query        url.Values
}

type kind struct {
	group, version, name, kind string
	namespaced                 bool
	singular                   string
	shortNames                 []string
	objects                    map[string]string               // by namespace/name
	watchers                   map[chan string]<-chan struct{} // with the end of each
}

func (k *kind) at(group, version string) bool { return k.group == group && k.version == version }

func newFleet(t testing.TB) *fleet {
	t.Helper()
	f := &fleet{rv: 100, counts: map[string]int{}}
	for _, k := range []*kind{
		{version: "v1", name: "pods", kind: "Pod", namespaced: true},
		{version: "v1", name: "nodes", kind: "Node"},
		{version: "v1", name: "configmaps", kind: "ConfigMap", namespaced: true},
		{version: "v1", name: "secrets", kind: "Secret", namespaced: true},
		{group: "apps", version: "v1", name: "deployments", kind: "Deployment", namespaced: true},
	} {
		f.serve(k)
	}
	f.Server = httptest.NewServer(http.HandlerFunc(f.handle))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// serve adds a resource, as a CustomResourceDefinition does.
func (f *fleet) serve(k *kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k.objects, k.watchers = map[string]string{}, map[chan string]<-chan struct{}{}
	f.kinds = append(f.kinds, k)
}

// withdraw takes a resource away, with its objects.
func (f *fleet) withdraw(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kinds = slices.DeleteFunc(f.kinds, func(k *kind) bool {
		if k.name != name {
			return false
		}
		for w := range k.watchers {
			close(w)
		}
		return true
	})
}

func (f *fleet) find(name string) *kind {
	i := slices.IndexFunc(f.kinds, func(k *kind) bool { return k.name == name })
	if i < 0 {
		return nil
	}
	return f.kinds[i]
}

// put writes an object; extra is further members such as `"spec":{}`.
func (f *fleet) put(resource, namespace, name, labels, extra string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.find(resource)
	f.rv++
	meta := fmt.Sprintf(`"name":%q,"uid":"u-%s","resourceVersion":"%d","labels":{%s}`, name, name, f.rv, labels)
	if k.namespaced {
		meta += fmt.Sprintf(`,"namespace":%q`, namespace)
	}
	if extra != "" {
		extra = "," + extra
	}
	key := namespace + "/" + name
	typ := "ADDED"
	if k.objects[key] != "" {
		typ = "MODIFIED"
	}
	k.objects[key] = fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{%s}%s}`, k.kind, strings.TrimPrefix(k.group+"/"+k.version, "/"), meta, extra)
	for w, done := range k.watchers {
		select {
		case w <- event(typ, k.objects[key]):
		case <-done:
		}
	}
}

func (f *fleet) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[path]
}

func (f *fleet) requests(path string) []seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []seen
	for _, s := range f.asked {
		if s.path == path {
			out = append(out, s)
		}
	}
	return out
}

func (f *fleet) handle(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	path := strings.Trim(r.URL.Path, "/")
	f.mu.Lock()
	count := r.URL.Path
	if q.Get("watch") != "" {
		count = "watch " + count
	}
	f.counts[count]++
	f.asked = append(f.asked, seen{path: count, accept: r.Header.Get("Accept"), query: q})
	f.mu.Unlock()
	parts := strings.Split(path, "/")
	switch {
	case path == "api":
		_, _ = fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case path == "apis":
		f.groups(w)
	case parts[0] == "api" && len(parts) == 2:
		f.resources(w, "", parts[1])
	case parts[0] == "apis" && len(parts) == 3:
		f.resources(w, parts[1], parts[2])
	case parts[0] == "api":
		f.objects(w, r, "", parts[1], parts[2:])
	default:
		f.objects(w, r, parts[1], parts[2], parts[3:])
	}
}

func (f *fleet) groups(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var groups []string
	for _, k := range f.kinds {
		g := fmt.Sprintf(`{"name":%q,"versions":[{"version":%q}],"preferredVersion":{"version":%q}}`, k.group, k.version, k.version)
		if k.group != "" && !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	_, _ = fmt.Fprintf(w, `{"kind":"APIGroupList","groups":[%s]}`, strings.Join(groups, ","))
}

func (f *fleet) resources(w http.ResponseWriter, group, version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for _, k := range f.kinds {
		if k.at(group, version) {
			short, _ := json.Marshal(k.shortNames)
			list = append(list, fmt.Sprintf(`{"name":%q,"kind":%q,"singularName":%q,"shortNames":%s,"namespaced":%v,"verbs":["list","watch"]},{"name":"%s/status","kind":%q,"verbs":["get"]}`,
				k.name, k.kind, k.singular, short, k.namespaced, k.name, k.kind))
		}
	}
	if list == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, status(404, "NotFound", "the server could not find the requested resource"))
		return
	}
	_, _ = fmt.Fprintf(w, `{"kind":"APIResourceList","resources":[%s]}`, strings.Join(list, ","))
}

// objects lists or watches. Label selectors are single "name=value" terms.
func (f *fleet) objects(w http.ResponseWriter, r *http.Request, group, version string, path []string) {
	namespace := ""
	if path[0] == "namespaces" && len(path) == 3 {
		namespace, path = path[1], path[2:]
	}
	q := r.URL.Query()
	partial := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	f.mu.Lock()
	k := f.find(path[0])
	if k == nil || !k.at(group, version) {
		f.mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprint(w, status(404, "NotFound", "the server could not find the requested resource"))
		return
	}
	wants := func(key, object string) bool {
		name, value, _ := strings.Cut(q.Get("labelSelector"), "=")
		return strings.HasPrefix(key, namespace) && (name == "" || strings.Contains(object, fmt.Sprintf(`%q:%q`, name, value)))
	}
	if q.Get("watch") == "" {
		var items []string
		for key, o := range k.objects {
			if wants(key, o) {
				items = append(items, form(o, partial))
			}
		}
		listKind := k.kind + "List"
		if partial {
			listKind = "PartialObjectMetadataList"
		}
		rv := f.rv
		f.mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"kind":%q,"metadata":{"resourceVersion":"%d"},"items":[%s]}`, listKind, rv, strings.Join(items, ","))
		return
	}
	lines := make(chan string, 10_000)
	since, _ := strconv.Atoi(q.Get("resourceVersion"))
	for key, o := range k.objects { // only the last state of each is known
		if versionOf(o) > since && wants(key, o) {
			lines <- event("ADDED", o)
		}
	}
	k.watchers[lines] = r.Context().Done()
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(k.watchers, lines)
	}()
	wire := &wire{w: w, done: r.Context().Done()}
	wire.send()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return
			}
			if partial {
				head, object, _ := strings.Cut(line, `"object":`)
				line = head + `"object":` + form(strings.TrimSuffix(object, "}"), true) + "}"
			}
			wire.send(line)
		case <-wire.done:
			return
		}
	}
}

func versionOf(object string) int {
	var o struct {
		Metadata struct {
			ResourceVersion string
		}
	}
	_ = json.Unmarshal([]byte(object), &o)
	n, _ := strconv.Atoi(o.Metadata.ResourceVersion)
	return n
}

// form is an object as it is asked for.
func form(object string, partial bool) string {
	if !partial {
		return object
	}
	var o struct {
		Metadata json.RawMessage `json:"metadata"`
	}
	_ = json.Unmarshal([]byte(object), &o)
	return fmt.Sprintf(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}`, o.Metadata)
}
