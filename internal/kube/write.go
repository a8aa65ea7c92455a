package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// Ref names one object, or a subresource of it.
type Ref struct {
	Resource  Resource
	Namespace string
	Name      string
	// Subresource such as "status"; usually empty.
	Subresource string
}

// PatchType is the content type of a patch.
type PatchType string

// The patch types.
const (
	MergePatch     PatchType = "application/merge-patch+json"
	StrategicPatch PatchType = "application/strategic-merge-patch+json"
	JSONPatch      PatchType = "application/json-patch+json"
	ApplyPatch     PatchType = "application/apply-patch+yaml"
)

// WriteOptions of a create, update or patch. The zero value writes for real.
type WriteOptions struct {
	// FieldManager names the writer.
	FieldManager string
	// DryRun checks and changes nothing.
	DryRun bool
	// Force lets an ApplyPatch take over fields of other managers.
	Force bool
	// Strict refuses fields that the resource does not have, and repeated ones; else the server drops
	// them.
	Strict bool
	// MetadataOnly asks to be answered with the object's metadata, where the server can leave the rest
	// out.
	MetadataOnly bool
}

func (o WriteOptions) accept() string {
	if o.MetadataOnly {
		return metadataOf
	}
	return ""
}

func (o WriteOptions) query() url.Values {
	q := url.Values{}
	setQuery(q, "fieldManager", o.FieldManager)
	if o.DryRun {
		q.Set("dryRun", "All")
	}
	if o.Force {
		q.Set("force", "true")
	}
	if o.Strict {
		q.Set("fieldValidation", "Strict")
	}
	return q
}

// Propagation says what becomes of the objects owned by a deleted one.
type Propagation string

// The propagation policies; empty leaves it to the server.
const (
	Background Propagation = "Background"
	Foreground Propagation = "Foreground"
	Orphan     Propagation = "Orphan"
)

// DeleteOptions of a delete. The zero value deletes whatever is there with the server's defaults.
type DeleteOptions struct {
	// UID and RV are preconditions; the delete fails with a conflict when they do not hold.
	UID, RV string
	// Grace in seconds; nil leaves it to the server.
	Grace *int64
	// Propagation to owned objects.
	Propagation Propagation
}

// Get reads an object from the API server itself, not from a cache.
func (c *Client) Get(ctx context.Context, ref Ref) ([]byte, error) {
	if err := ref.validate(); err != nil {
		return nil, err
	}
	return c.do(ctx, request{method: http.MethodGet, path: ref.path()})
}

// Create creates an object from JSON and returns it as stored. The name is in the object, ref's may
// be empty; with a name and a subresource it posts to that.
func (c *Client) Create(ctx context.Context, ref Ref, body []byte, o WriteOptions) ([]byte, error) {
	path := ref.Resource.path(ref.Namespace, "", "")
	if ref.Subresource != "" {
		if err := ref.validate(); err != nil {
			return nil, err
		}
		path = ref.path()
	}
	return c.do(ctx, request{method: http.MethodPost, path: path, query: o.query(), accept: o.accept(), body: body})
}

// Update replaces an object; the resource version in body, when there is one, must be the stored
// one, or a conflict is returned.
func (c *Client) Update(ctx context.Context, ref Ref, body []byte, o WriteOptions) ([]byte, error) {
	if err := ref.validate(); err != nil {
		return nil, err
	}
	return c.do(ctx, request{method: http.MethodPut, path: ref.path(), query: o.query(), accept: o.accept(), body: body})
}

// UpdateStatus replaces an object's status.
func (c *Client) UpdateStatus(ctx context.Context, ref Ref, body []byte, o WriteOptions) ([]byte, error) {
	ref.Subresource = "status"
	return c.Update(ctx, ref, body, o)
}

// Patch changes an object. A patch that holds metadata.uid or metadata.resourceVersion has them as
// preconditions.
func (c *Client) Patch(ctx context.Context, ref Ref, t PatchType, patch []byte, o WriteOptions) ([]byte, error) {
	if err := ref.validate(); err != nil {
		return nil, err
	}
	return c.do(ctx, request{method: http.MethodPatch, path: ref.path(), query: o.query(), contentType: string(t), accept: o.accept(), body: patch})
}

// Delete deletes an object and returns what the server answers: the object while it still exists,
// else a Status, which has no resource version.
func (c *Client) Delete(ctx context.Context, ref Ref, o DeleteOptions) ([]byte, error) {
	if err := ref.validate(); err != nil {
		return nil, err
	}
	type preconditions struct {
		UID string `json:"uid,omitempty"`
		RV  string `json:"resourceVersion,omitempty"`
	}
	options := struct {
		Kind          string         `json:"kind"`
		APIVersion    string         `json:"apiVersion"`
		Grace         *int64         `json:"gracePeriodSeconds,omitempty"`
		Propagation   Propagation    `json:"propagationPolicy,omitempty"`
		Preconditions *preconditions `json:"preconditions,omitempty"`
	}{Kind: "DeleteOptions", APIVersion: "v1", Grace: o.Grace, Propagation: o.Propagation}
	if o.UID != "" || o.RV != "" {
		options.Preconditions = &preconditions{UID: o.UID, RV: o.RV}
	}
	body, err := json.Marshal(options)
	if err != nil {
		return nil, fmt.Errorf("kube: delete options: %w", err)
	}
	return c.do(ctx, request{method: http.MethodDelete, path: ref.path(), body: body})
}

func (r Ref) path() string { return r.Resource.path(r.Namespace, r.Name, r.Subresource) }

func (r Ref) validate() error {
	switch {
	case r.Resource.Name == "" || r.Resource.Version == "":
		return fmt.Errorf("kube: %q: no resource", r.Name)
	case r.Name == "":
		return fmt.Errorf("kube: %s: no name", r.Resource.Name)
	case r.Resource.Namespaced && r.Namespace == "":
		return fmt.Errorf("kube: %s %q: no namespace", r.Resource.Name, r.Name)
	}
	return nil
}
