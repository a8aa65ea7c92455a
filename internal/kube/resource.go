package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// ErrNotServed says that the API server does not serve the resource (yet); a
// CustomResourceDefinition may make it so later.
var ErrNotServed = errors.New("kube: resource is not served")

// Resource is one resource of the API.
type Resource struct {
	Group, Version, Name string // Name is the plural, such as "pods"
	Kind                 string
	Namespaced           bool
	Verbs                []string
	ShortNames           []string
	Singular             string

	metadata bool // only the objects' metadata are asked for
}

// MetadataOnly is the resource without its objects' content: lists and watches ask the API server
// for PartialObjectMetadata of meta.k8s.io/v1, and fail when it sends anything else. Writes are not
// for it.
func (r Resource) MetadataOnly() Resource {
	r.metadata, r.Kind = true, partialKind
	return r
}

const (
	partialKind    = "PartialObjectMetadata"
	partialVersion = "meta.k8s.io/v1"
)

// accept is the form in which lists and watches ask for the objects; empty is the usual one.
func (r Resource) accept(list bool) string {
	switch {
	case !r.metadata:
		return ""
	case list:
		return "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	}
	return "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
}

// Collection is the resource as a collection of cluster.
func (r Resource) Collection(cluster string) delta.Collection {
	return delta.Collection{Cluster: cluster, Group: r.Group, Version: r.Version, Resource: r.Name}
}

// APIVersion is the value of apiVersion in the resource's objects.
func (r Resource) APIVersion() string {
	if r.metadata {
		return partialVersion
	}
	return groupVersion(r.Group, r.Version)
}

// Watchable reports whether the resource can be listed and watched.
func (r Resource) Watchable() bool {
	return slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch")
}

func groupVersion(group, version string) string {
	if group == "" {
		return version
	}
	return group + "/" + version
}

func root(group, version string) string {
	if group == "" {
		return "/api/" + url.PathEscape(version)
	}
	return "/apis/" + url.PathEscape(group) + "/" + url.PathEscape(version)
}

// path of the resource, an object or a subresource; empty parts are left out.
func (r Resource) path(namespace, name, subresource string) string {
	var b strings.Builder
	b.WriteString(root(r.Group, r.Version))
	if r.Namespaced && namespace != "" {
		b.WriteString("/namespaces/" + namespace)
	}
	b.WriteString("/" + r.Name)
	for _, part := range [...]string{name, subresource} {
		if part != "" {
			b.WriteString("/" + part)
		}
	}
	return b.String()
}

// discovered is a group version's resources and when they were asked for.
type discovered struct {
	resources []Resource
	at        time.Time
}

// discoveryFor is how long an answer of discovery is believed when it holds what is asked for.
const discoveryFor = 5 * time.Minute

// Resolve finds the resource of a collection. The answer is kept for some minutes; [ErrNotServed]
// is never kept. Other errors are the server's.
func (c *Client) Resolve(ctx context.Context, col delta.Collection) (Resource, error) {
	gv := groupVersion(col.Group, col.Version)
	c.mu.Lock()
	known := c.resources[gv]
	c.mu.Unlock()
	find := func(rs []Resource) (Resource, bool) {
		i := slices.IndexFunc(rs, func(r Resource) bool { return r.Name == col.Resource })
		if i < 0 {
			return Resource{}, false
		}
		return rs[i], true
	}
	if r, ok := find(known.resources); ok && time.Since(known.at) < discoveryFor {
		return r, nil
	}
	rs, err := c.Discover(ctx, col.Group, col.Version)
	if err != nil {
		return Resource{}, err
	}
	if r, ok := find(rs); ok {
		return r, nil
	}
	return Resource{}, fmt.Errorf("%w: %s", ErrNotServed, col.ResourceName())
}

// Discover asks for the resources of one group and version, without subresources; [ErrNotServed]
// when the group version is unknown.
func (c *Client) Discover(ctx context.Context, group, version string) ([]Resource, error) {
	body, err := c.do(ctx, request{method: http.MethodGet, path: root(group, version)})
	if IsNotFound(err) {
		return nil, fmt.Errorf("%w: %s", ErrNotServed, groupVersion(group, version))
	}
	if err != nil {
		return nil, err
	}
	var list struct {
		Kind      string `json:"kind"`
		Resources []struct {
			Name         string   `json:"name"`
			SingularName string   `json:"singularName"`
			Kind         string   `json:"kind"`
			Namespaced   bool     `json:"namespaced"`
			Verbs        []string `json:"verbs"`
			ShortNames   []string `json:"shortNames"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("kube: discovery of %s: %w", groupVersion(group, version), err)
	}
	if list.Resources == nil && list.Kind != "APIResourceList" {
		return nil, fmt.Errorf("%w: discovery of %s: want a list of resources, got kind %q", ErrBadAnswer, groupVersion(group, version), list.Kind)
	}
	var out []Resource
	for _, r := range list.Resources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		out = append(out, Resource{
			Group: group, Version: version, Name: r.Name, Kind: r.Kind, Namespaced: r.Namespaced,
			Verbs: r.Verbs, ShortNames: r.ShortNames, Singular: cmp.Or(r.SingularName, strings.ToLower(r.Kind)),
		})
	}
	c.mu.Lock()
	c.resources[groupVersion(group, version)] = discovered{resources: slices.Clone(out), at: time.Now()}
	c.mu.Unlock()
	return out, nil
}
