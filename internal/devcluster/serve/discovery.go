package serve

import (
	"cmp"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
)

// serverVersion is the Kubernetes version whose behaviour is followed.
const serverVersion = "v1.36.3"

func versionInfo() version.Info {
	return version.Info{
		Major: "1", Minor: "36", GitVersion: serverVersion + "+deltaplane", GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// handleDiscovery answers /api, /apis and what lies below up to a group's version.
func (a *Server) handleDiscovery(w http.ResponseWriter, req *http.Request, parts []string) error {
	root := parts[0]
	if len(parts) == 1 && wantsAggregated(req.Header.Get("Accept")) {
		w.Header().Set("Vary", "Accept")
		list := a.aggregatedGroups(root == "api")
		raw, err := marshal(list)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", aggregated)
		_, err = w.Write(raw)
		return quietly(err)
	}
	switch {
	case root == "api" && len(parts) == 1:
		return writeJSON(w, http.StatusOK, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: req.Host}},
		})
	case len(parts) == 1:
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
		for _, g := range a.groups() {
			if g != "" {
				list.Groups = append(list.Groups, a.apiGroup(g))
			}
		}
		return writeJSON(w, http.StatusOK, list)
	case root == "apis" && len(parts) == 2:
		if !a.kinds.HasGroup(parts[1], "") {
			return notServed()
		}
		g := a.apiGroup(parts[1])
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		return writeJSON(w, http.StatusOK, g)
	case root == "api":
		return a.resourceList(w, "", parts[1])
	}
	return a.resourceList(w, parts[1], parts[2])
}

func wantsAggregated(accept string) bool {
	return strings.Contains(accept, "as=APIGroupDiscoveryList") && strings.Contains(accept, "v=v2;") || strings.HasSuffix(accept, "v=v2")
}

func (a *Server) groups() []string {
	var out []string
	for _, r := range a.kinds.All() {
		if !slices.Contains(out, r.Group) {
			out = append(out, r.Group)
		}
	}
	return out
}

// versions lists the versions of a group that are served.
func (a *Server) versions(group string) []string {
	var out []string
	for _, r := range a.kinds.All() {
		if r.Group == group && !slices.Contains(out, r.Version) {
			out = append(out, r.Version)
		}
	}
	return out
}

func (a *Server) apiGroup(group string) metav1.APIGroup {
	g := metav1.APIGroup{Name: group}
	for _, v := range a.versions(group) {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + v, Version: v})
	}
	if len(g.Versions) > 0 {
		g.PreferredVersion = g.Versions[0]
	}
	return g
}

func verbs(r *kinds.Resource) []string {
	v := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	if r.Plural == "namespaces" {
		v = slices.DeleteFunc(v, func(s string) bool { return s == "deletecollection" })
	}
	return v
}

func (a *Server) resourceList(w http.ResponseWriter, group, ver string) error {
	if !a.kinds.HasGroup(group, ver) {
		return notServed()
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, APIResources: []metav1.APIResource{}}
	list.GroupVersion = metav1.GroupVersion{Group: group, Version: ver}.String()
	for _, r := range a.kinds.All() {
		if r.Group != group || r.Version != ver {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.Plural, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: verbs(r),
			ShortNames: r.ShortNames, Categories: r.Categories,
		})
		for _, s := range subresources(r) {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: r.Plural + "/" + s.name, Namespaced: r.Namespaced, Kind: cmp.Or(s.kind, r.Kind), Group: s.group, Version: s.version, Verbs: s.verbs,
			})
		}
	}
	return writeJSON(w, http.StatusOK, list)
}

type subresource struct {
	name, group, version, kind string
	verbs                      []string
}

func subresources(r *kinds.Resource) []subresource {
	var out []subresource
	if r.HasStatus {
		out = append(out, subresource{name: "status", verbs: []string{"get", "patch", "update"}})
	}
	for _, s := range r.Subresources {
		switch s {
		case "binding":
			out = append(out, subresource{name: s, kind: "Binding", verbs: []string{"create"}})
		case "eviction":
			out = append(out, subresource{name: s, group: "policy", version: "v1", kind: "Eviction", verbs: []string{"create"}})
		case "log":
			out = append(out, subresource{name: s, verbs: []string{"get"}})
		case "token":
			out = append(out, subresource{name: s, group: "authentication.k8s.io", version: "v1", kind: "TokenRequest", verbs: []string{"create"}})
		case "finalize":
			out = append(out, subresource{name: s, verbs: []string{"update"}})
		}
	}
	return out
}

func (a *Server) aggregatedGroups(core bool) discoveryv2.APIGroupDiscoveryList {
	list := discoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items:    []discoveryv2.APIGroupDiscovery{},
	}
	all := a.kinds.All()
	for _, g := range a.groups() {
		if (g == "") != core {
			continue
		}
		item := discoveryv2.APIGroupDiscovery{}
		item.Name = g
		for _, v := range a.versions(g) {
			ver := discoveryv2.APIVersionDiscovery{Version: v, Freshness: discoveryv2.DiscoveryFreshnessCurrent}
			for _, r := range all {
				if r.Group == g && r.Version == v {
					ver.Resources = append(ver.Resources, discovered(r))
				}
			}
			item.Versions = append(item.Versions, ver)
		}
		list.Items = append(list.Items, item)
	}
	return list
}

func discovered(r *kinds.Resource) discoveryv2.APIResourceDiscovery {
	scope := discoveryv2.ScopeCluster
	if r.Namespaced {
		scope = discoveryv2.ScopeNamespace
	}
	d := discoveryv2.APIResourceDiscovery{
		Resource: r.Plural, SingularResource: r.Singular, Scope: scope, Verbs: verbs(r), ShortNames: r.ShortNames, Categories: r.Categories,
		ResponseKind: &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind},
	}
	for _, s := range subresources(r) {
		kind := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		if s.kind != "" {
			kind = &metav1.GroupVersionKind{Group: s.group, Version: cmp.Or(s.version, "v1"), Kind: s.kind}
		}
		d.Subresources = append(d.Subresources, discoveryv2.APISubresourceDiscovery{Subresource: s.name, ResponseKind: kind, Verbs: s.verbs})
	}
	return d
}

// handleOpenAPI serves just enough of OpenAPI v3 for kubectl to learn that the
// server validates fields itself; there are no schemas.
func (a *Server) handleOpenAPI(w http.ResponseWriter, _ *http.Request, parts []string) error {
	if len(parts) == 0 || parts[0] != "v3" {
		return notServed()
	}
	if len(parts) == 1 {
		paths := map[string]any{}
		for _, g := range a.groups() {
			for _, v := range a.versions(g) {
				p := groupPath(g, v)
				paths[p] = map[string]string{"serverRelativeURL": "/openapi/v3/" + p}
			}
		}
		return writeJSON(w, http.StatusOK, map[string]any{"paths": paths})
	}
	want := strings.Join(parts[1:], "/")
	paths := map[string]any{}
	for _, r := range a.kinds.All() {
		if groupPath(r.Group, r.Version) == want {
			path, op := openAPIPath(r)
			paths[path] = op
		}
	}
	if len(paths) == 0 {
		return notServed()
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.0.0", "info": map[string]string{"title": "Deltaplane dev cluster", "version": serverVersion}, "paths": paths,
	})
}

func groupPath(group, version string) string {
	if group == "" {
		return "api/" + version
	}
	return "apis/" + group + "/" + version
}

func openAPIPath(r *kinds.Resource) (string, any) {
	path := "/" + groupPath(r.Group, r.Version) + "/"
	if r.Namespaced {
		path += "namespaces/{namespace}/"
	}
	path += r.Plural + "/{name}"
	param := func(name string) map[string]any {
		return map[string]any{"name": name, "in": "query", "schema": map[string]any{"type": "string", "uniqueItems": true}}
	}
	operation := map[string]any{
		"description":                     fmt.Sprintf("write the specified %s", r.Kind),
		"x-kubernetes-group-version-kind": map[string]string{"group": r.Group, "version": r.Version, "kind": r.Kind},
		"parameters":                      []any{param("dryRun"), param("fieldManager"), param("fieldValidation")},
		"responses":                       map[string]any{"200": map[string]string{"description": "OK"}},
	}
	return path, map[string]any{"patch": operation, "put": operation}
}
