package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/client/internal/run"
	"github.com/deltaplane/deltaplane/core/delta"
)

// WroteUnversioned says that the context's reconcile changed an object by a call whose answer has
// no version of it: an eviction, a binding. Key and uid are those of the object before the call. It
// asks Options.Live what became of the object: where the UID is gone it is [Controller.Deleted],
// else [Controller.Wrote] of the version that the object has by now. It may be called too when
// nobody can tell whether the call was carried out. An error says that nothing can be promised:
// return it from the reconciler.
func (c *Controller) WroteUnversioned(ctx context.Context, collection, key, uid string) error {
	r, full, err := c.unversioned(ctx, collection)
	if err == nil {
		err = c.look(ctx, r, full, key, uid)
	}
	if err != nil {
		return fmt.Errorf("controller: wrote %s %s: %w", collection, key, err)
	}
	return nil
}

func (c *Controller) look(ctx context.Context, r *run.Run, full, key, uid string) error {
	if _, err := delta.ParseKey(key); err != nil {
		return err
	}
	if uid == "" {
		return errors.New("the UID is empty")
	}
	k := delta.Key(key)
	now, err := c.live(ctx, full, k.Namespace(), Selection{FieldSelector: "metadata.name=" + k.Name()})
	if err != nil {
		return err
	}
	if is, ok := now[key]; ok && is.UID == uid {
		return r.Wrote(ctx, full, is.ResourceVersion)
	}
	return r.Deleted(ctx, run.Gone{Collection: full, Key: key, UID: uid, At: time.Now().Unix()})
}

// DeleteCollection calls send, which has the API server delete the objects of a collection that s
// chooses, by DELETE of the collection or one by one. The reconcile's later reads of the collection
// wait until the index has seen these deletions, and so do those of the key's next run, on any
// replica; an object with finalizers or a grace period counts as seen once the index shows it as
// being deleted. Which objects they are is asked of Options.Live before and after the call, so that
// it holds for those too that the index has not seen yet. Of s, Namespaces, Labels and
// FieldSelector are possible.
//
// An error of send is returned as it is. What was deleted nevertheless is waited for. Any other
// error says that nothing was sent, or that nothing can be promised: return it from the reconciler.
func (c *Controller) DeleteCollection(ctx context.Context, collection string, s Selection, send func(ctx context.Context) error) error {
	r, full, err := c.unversioned(ctx, collection)
	var before map[string]liveObject
	switch {
	case err != nil:
	case send == nil:
		err = errors.New("send is nil")
	case len(s.Fields) > 0 || s.When != nil:
		err = errors.New("the selection has Fields or When")
	default:
		before, err = c.liveOf(ctx, full, s)
	}
	if err != nil {
		return fmt.Errorf("controller: delete objects of %s: nothing was sent: %w", collection, err)
	}
	failed := send(ctx)
	if err := c.deleted(ctx, r, full, s, before); err != nil && failed == nil {
		return fmt.Errorf("controller: delete objects of %s: reads that follow may not see it: %w", collection, err)
	}
	return failed
}

// deleted notes those objects that are gone or going.
func (c *Controller) deleted(ctx context.Context, r *run.Run, full string, s Selection, before map[string]liveObject) error {
	after, err := c.liveOf(ctx, full, s)
	if err != nil {
		return err
	}
	var all []run.Gone
	for key, was := range before {
		if is := after[key]; was.DeletionTimestamp == nil && (is.UID != was.UID || is.DeletionTimestamp != nil) {
			all = append(all, run.Gone{Collection: full, Key: key, UID: was.UID, Version: was.ResourceVersion, At: time.Now().Unix(), Ending: true})
		}
	}
	if len(all) == 0 {
		return nil
	}
	return r.Deleted(ctx, all...)
}

// unversioned is the reconcile of a context, and the full name of a collection that it changes.
func (c *Controller) unversioned(ctx context.Context, collection string) (*run.Run, string, error) {
	r, ok := ctx.Value(runKey{}).(*run.Run)
	if !ok {
		return nil, "", errors.New("the context is not that of a reconcile")
	}
	if c.o.Live == nil {
		return nil, "", errors.New("Options.Live is not set")
	}
	full, err := c.names.of(ctx, collection)
	return r, full, err
}

// liveObject is an object at the API server.
type liveObject struct {
	Namespace, Name, UID, ResourceVersion string
	DeletionTimestamp                     *time.Time
}

// liveOf are the objects of a selection by key, as the API server has them.
func (c *Controller) liveOf(ctx context.Context, full string, s Selection) (map[string]liveObject, error) {
	if len(s.Namespaces) == 0 {
		return c.live(ctx, full, "", s)
	}
	all := map[string]liveObject{}
	for _, namespace := range s.Namespaces {
		some, err := c.live(ctx, full, namespace, s)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, some)
	}
	return all, nil
}

// live are those of a namespace, of every one if it is empty.
func (c *Controller) live(ctx context.Context, full, namespace string, s Selection) (map[string]liveObject, error) {
	of, err := delta.ParseCollection(full)
	if err != nil {
		return nil, err
	}
	path := pathOf(of, namespace, s)
	body, err := c.o.Live(ctx, of.Cluster, path)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	var list struct {
		Kind     string
		Metadata struct{ Continue string }
		Items    []struct{ Metadata liveObject }
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if !strings.HasSuffix(list.Kind, "List") || list.Metadata.Continue != "" {
		return nil, fmt.Errorf("GET %s: Options.Live returned a %q that is not a whole list", path, list.Kind)
	}
	all := make(map[string]liveObject, len(list.Items))
	for _, item := range list.Items {
		all[Request{item.Metadata.Namespace, item.Metadata.Name}.Key()] = item.Metadata
	}
	return all, nil
}

// pathOf is the path of a list.
func pathOf(of delta.Collection, namespace string, s Selection) string {
	path := "/api/" + of.Version
	if of.Group != "" {
		path = "/apis/" + of.Group + "/" + of.Version
	}
	if namespace != "" {
		path += "/namespaces/" + url.PathEscape(namespace)
	}
	path += "/" + of.Resource
	query := url.Values{}
	if s.Labels != "" {
		query.Set("labelSelector", s.Labels)
	}
	if s.FieldSelector != "" {
		query.Set("fieldSelector", s.FieldSelector)
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}
