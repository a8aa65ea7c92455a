package testing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// The calls of this file are the test's own: nothing is done to them.

// Apply creates objects, or changes those that exist: fields that an object has are set,
// others stay. An object is JSON or YAML, as a string or bytes, or anything that encodes to
// JSON; it has apiVersion and kind. One without a namespace goes to "default".
func (e *Env) Apply(objects ...any) {
	e.t.Helper()
	for _, object := range objects {
		e.fail(e.apply(e.t.Context(), object), "apply")
	}
}

func (e *Env) apply(ctx context.Context, object any) error {
	body, err := encode(object)
	if err != nil {
		return err
	}
	var about struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &about); err != nil {
		return fmt.Errorf("%.200s: %w", body, err)
	}
	if about.APIVersion == "" || about.Kind == "" || about.Metadata.Name == "" {
		return fmt.Errorf("apiVersion, kind and metadata.name are required: %.200s", body)
	}
	group, version, found := strings.Cut(about.APIVersion, "/")
	if !found {
		group, version = "", about.APIVersion
	}
	resources, err := e.kube.Discover(ctx, group, version)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(resources, func(r kube.Resource) bool { return r.Kind == about.Kind })
	if at < 0 {
		return fmt.Errorf("%s %s: %w", about.APIVersion, about.Kind, kube.ErrNotServed)
	}
	ref := resources[at].Ref("", about.Metadata.Name)
	if resources[at].Namespaced {
		if ref.Namespace = about.Metadata.Namespace; ref.Namespace == "" {
			ref.Namespace = "default"
		}
	}
	_, err = e.kube.Create(ctx, ref, body, kube.WriteOptions{Strict: true})
	if kube.IsAlreadyExists(err) {
		_, err = e.kube.Patch(ctx, ref, kube.MergePatch, body, kube.WriteOptions{Strict: true})
	}
	return err
}

func encode(object any) ([]byte, error) {
	switch object := object.(type) {
	case string:
		return yaml.YAMLToJSON([]byte(object))
	case []byte:
		return yaml.YAMLToJSON(object)
	default:
		return json.Marshal(object)
	}
}

// Delete deletes an object by its resource, "pods" or "jobs.batch", and its key,
// "namespace/name" or "name". What it owns is collected by the API server.
func (e *Env) Delete(resource, key string) {
	e.t.Helper()
	ctx := e.t.Context()
	ref, err := e.ref(ctx, resource, key)
	if err == nil {
		_, err = e.kube.Delete(ctx, ref, kube.DeleteOptions{Propagation: kube.Background})
	}
	e.fail(err, "delete %s %s", resource, key)
}

// Get reads an object from the API server, decoded from its JSON; nil when there is none.
func Get[T any](e *Env, resource, key string) *T {
	e.t.Helper()
	ctx := e.t.Context()
	ref, err := e.ref(ctx, resource, key)
	e.fail(err, "get %s %s", resource, key)
	body, err := e.kube.Get(ctx, ref)
	if kube.IsNotFound(err) {
		return nil
	}
	out := new(T)
	if err == nil {
		err = json.Unmarshal(body, out)
	}
	e.fail(err, "get %s %s", resource, key)
	return out
}

// List reads all objects of a resource from the API server, decoded from their JSON. They
// lack apiVersion and kind where the API server leaves them out of lists.
func List[T any](e *Env, resource string) []*T {
	e.t.Helper()
	ctx := e.t.Context()
	r, err := e.resource(ctx, resource)
	e.fail(err, "list %s", resource)
	var all []*T
	_, err = e.kube.ListEach(ctx, r, kube.ListOptions{}, func(kube.Page) error { return nil }, func(item []byte) error {
		one := new(T)
		all = append(all, one)
		return json.Unmarshal(item, one)
	})
	e.fail(err, "list %s", resource)
	return all
}

func (e *Env) ref(ctx context.Context, resource, key string) (kube.Ref, error) {
	r, err := e.resource(ctx, resource)
	if err != nil {
		return kube.Ref{}, err
	}
	if _, err := delta.ParseKey(key); err != nil {
		return kube.Ref{}, err
	}
	k := delta.Key(key)
	switch {
	case r.Namespaced && k.Namespace() == "":
		return kube.Ref{}, errors.New("the resource has namespaces: want namespace/name")
	case !r.Namespaced && k.Namespace() != "":
		return kube.Ref{}, errors.New("the resource has no namespaces: want a name")
	}
	return r.Ref(k.Namespace(), k.Name()), nil
}

// resource finds "resource", "resource.group", "resource.version" or
// "resource.version.group".
func (e *Env) resource(ctx context.Context, text string) (kube.Resource, error) {
	all, err := e.kube.DiscoverAll(ctx)
	if err != nil {
		return kube.Resource{}, err
	}
	at := slices.IndexFunc(all, func(r kube.Resource) bool {
		return slices.Contains([]string{r.Name, r.Name + "." + r.Group, r.Name + "." + r.Version, r.Name + "." + r.Version + "." + r.Group}, text)
	})
	if at < 0 {
		return kube.Resource{}, fmt.Errorf("resource %q: %w", text, kube.ErrNotServed)
	}
	return all[at], nil
}
