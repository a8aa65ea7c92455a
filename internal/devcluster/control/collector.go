package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/read"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
	"github.com/deltaplane/deltaplane/internal/devcluster/write"
)

// DirtySet is the collector's work: places to look at, each once however often it
// was named. Adding never blocks, so the store may do it under its lock.
type DirtySet struct {
	mu    sync.Mutex
	queue []store.Ref
	in    map[store.Ref]struct{}
	wake  chan struct{}
}

// NewDirtySet makes an empty set.
func NewDirtySet() *DirtySet {
	return &DirtySet{in: map[store.Ref]struct{}{}, wake: make(chan struct{}, 1)}
}

func (d *DirtySet) add(at store.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.in[at]; ok {
		return
	}
	d.in[at] = struct{}{}
	d.queue = append(d.queue, at)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *DirtySet) take() []store.Ref {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queue
	d.queue, d.in = nil, map[store.Ref]struct{}{}
	return q
}

// Note marks what a commit may have let go. It is called under the store's lock.
func (d *DirtySet) Note(in store.Locked, t *store.Table, e *store.Event) {
	if e.Junk != nil {
		return
	}
	o := e.Cur
	if o == nil {
		o = e.Gone
		in.Dependents(o.Decoded.GetUID(), d.add)
		if ns := o.Decoded.GetNamespace(); ns != "" {
			d.noteWaiting(in, store.Ref{Table: "namespaces", Key: ns})
		}
		if t.Resource.Custom {
			d.noteWaiting(in, store.Ref{Table: kinds.CRDID, Key: t.Resource.ID()})
		}
	}
	if e.Cur != nil && (len(o.Decoded.GetOwnerReferences()) > 0 || o.Decoded.GetDeletionTimestamp() != nil) {
		d.add(store.Ref{Table: t.Resource.ID(), Key: o.Key})
	}
	// An owner that waits for its dependents looks again at each of them that changes.
	for _, owner := range o.Decoded.GetOwnerReferences() {
		if at, ok := in.Find(owner.UID); ok && (e.Gone != nil || e.Prev != nil) {
			d.noteWaiting(in, at)
		}
	}
}

// noteWaiting makes the collector look at an object again if it is being deleted.
func (d *DirtySet) noteWaiting(in store.Locked, at store.Ref) {
	if o := in.Get(at); o != nil && o.Decoded.GetDeletionTimestamp() != nil {
		d.add(at)
	}
}

// Collector does what the cluster does to objects nobody asks for: it collects the dependents of
// deleted owners, empties deleted namespaces and CRDs, and expires Events.
type Collector struct {
	store    *store.Store
	kinds    *kinds.Registry
	writer   *write.Writer
	log      *slog.Logger
	eventTTL time.Duration
	dirty    *DirtySet // what it looks at next
}

// expireEvery is how often Events are checked for their age.
const expireEvery = time.Minute

// NewCollector makes a collector; the store adds every change to dirty.
func NewCollector(s *store.Store, kinds *kinds.Registry, w *write.Writer, log *slog.Logger, eventTTL time.Duration, dirty *DirtySet) *Collector {
	return &Collector{store: s, kinds: kinds, writer: w, log: log, eventTTL: eventTTL, dirty: dirty}
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	c.noteEverything()
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		for _, at := range c.dirty.take() {
			if ctx.Err() != nil {
				return nil
			}
			c.collectOne(at)
		}
		select {
		case <-c.dirty.wake:
		case <-tick.C:
			c.expireEvents()
		case <-ctx.Done():
			return nil
		}
	}
}

// noteEverything makes the collector look at what a restart may have left undone.
func (c *Collector) noteEverything() {
	c.store.Each(func(at store.Ref, o *store.Object) {
		if len(o.Decoded.GetOwnerReferences()) > 0 || o.Decoded.GetDeletionTimestamp() != nil {
			c.dirty.add(at)
		}
	})
}

func (c *Collector) collectOne(at store.Ref) {
	r := c.kinds.Get(at.Table)
	if r == nil {
		return
	}
	o := c.store.Get(r, at.Key)
	if o == nil {
		return
	}
	if o.Decoded.GetDeletionTimestamp() != nil {
		switch {
		case r.ID() == "namespaces":
			c.emptyNamespace(o.Decoded.GetName())
		case r.ID() == kinds.CRDID:
			c.emptyCRD(o)
		case slices.Contains(o.Decoded.GetFinalizers(), metav1.FinalizerOrphanDependents):
			c.orphanDependents(r, o)
		case slices.Contains(o.Decoded.GetFinalizers(), metav1.FinalizerDeleteDependents):
			c.deleteDependents(r, o)
		}
		return
	}
	c.checkOwners(r, o)
}

// checkOwners deletes an object all of whose owners are gone, and forgets the gone
// ones of an object that has another.
func (c *Collector) checkOwners(r *kinds.Resource, o *store.Object) {
	owners := o.Decoded.GetOwnerReferences()
	if len(owners) == 0 {
		return
	}
	solid, waiting := 0, 0
	drop := map[types.UID]bool{}
	for _, owner := range owners {
		switch obj := c.store.Owner(owner, o.Decoded.GetNamespace()); {
		case obj == nil:
			drop[owner.UID] = true
		case slices.Contains(obj.Decoded.GetFinalizers(), metav1.FinalizerDeleteDependents) && obj.Decoded.GetDeletionTimestamp() != nil &&
			owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
			waiting++
			drop[owner.UID] = true
		default:
			solid++
		}
	}
	switch {
	case len(drop) == 0:
	case solid > 0:
		c.dropOwners(r, o.Key, drop)
	case waiting > 0 && len(c.store.Dependents(o.Decoded.GetUID())) > 0:
		c.deleteFor(r, o, metav1.DeletePropagationForeground)
	default:
		c.deleteFor(r, o, metav1.DeletePropagationBackground)
	}
}

// deleteFor deletes on behalf of an owner; finalizers already on the object decide first.
func (c *Collector) deleteFor(r *kinds.Resource, o *store.Object, policy metav1.DeletionPropagation) {
	switch {
	case slices.Contains(o.Decoded.GetFinalizers(), metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(o.Decoded.GetFinalizers(), metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	uid := o.Decoded.GetUID()
	_, _, err := c.writer.Delete(r, o.Key, metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &uid}})
	c.collectError(err)
}

// collectError reports a failure of the collector that is not a lost race.
func (c *Collector) collectError(err error) {
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		warn(c.log, "collector", err, "")
	}
}

// edit changes an object as the collector; change returns false to leave it alone.
func (c *Collector) edit(r *kinds.Resource, key string, change func(kinds.APIObject) bool) {
	_, err := c.writer.Update(r, key, write.Options{Manager: "garbage-collector"}, func(cur *store.Object) (kinds.APIObject, error) {
		next := cur.Clone()
		if !change(next) {
			return nil, errUnchanged
		}
		return next, nil
	})
	if !errors.Is(err, errUnchanged) {
		c.collectError(err)
	}
}

var errUnchanged = errors.New("devcluster: nothing to change")

func (c *Collector) dropOwners(r *kinds.Resource, key string, drop map[types.UID]bool) {
	c.edit(r, key, func(o kinds.APIObject) bool {
		kept := slices.DeleteFunc(slices.Clone(o.GetOwnerReferences()), func(owner metav1.OwnerReference) bool { return drop[owner.UID] })
		changed := len(kept) != len(o.GetOwnerReferences())
		o.SetOwnerReferences(kept)
		return changed
	})
}

func (c *Collector) dropFinalizer(r *kinds.Resource, o *store.Object, name string) {
	uid := o.Decoded.GetUID()
	c.edit(r, o.Key, func(obj kinds.APIObject) bool {
		if obj.GetUID() != uid || !slices.Contains(obj.GetFinalizers(), name) {
			return false
		}
		obj.SetFinalizers(slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == name }))
		return true
	})
}

// orphanDependents lets the dependents of a deleted owner live without it.
func (c *Collector) orphanDependents(r *kinds.Resource, o *store.Object) {
	for _, at := range c.store.Dependents(o.Decoded.GetUID()) {
		if dr := c.kinds.Get(at.Table); dr != nil {
			c.dropOwners(dr, at.Key, map[types.UID]bool{o.Decoded.GetUID(): true})
		}
	}
	c.dropFinalizer(r, o, metav1.FinalizerOrphanDependents)
}

// deleteDependents deletes what a foreground-deleted owner has, and lets the owner go
// when nothing that blocks it is left.
func (c *Collector) deleteDependents(r *kinds.Resource, o *store.Object) {
	blocked := false
	uid := o.Decoded.GetUID()
	for _, at := range c.store.Dependents(uid) {
		dr := c.kinds.Get(at.Table)
		if dr == nil {
			continue
		}
		dep := c.store.Get(dr, at.Key)
		if dep == nil {
			continue
		}
		for _, owner := range dep.Decoded.GetOwnerReferences() {
			blocked = blocked || owner.UID == uid && owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
		}
		if dep.Decoded.GetDeletionTimestamp() == nil {
			c.dirty.add(at)
		}
	}
	if !blocked {
		c.dropFinalizer(r, o, metav1.FinalizerDeleteDependents)
	}
}

// emptyNamespace deletes what a deleted namespace holds, and then the namespace.
func (c *Collector) emptyNamespace(name string) {
	left := 0
	for _, r := range c.kinds.All() {
		if !r.Namespaced {
			continue
		}
		left += c.deleteAll(r, read.Selector{Namespace: name, Resource: r})
	}
	if left > 0 {
		return // each object that goes makes us look again
	}
	o := c.store.Get(c.kinds.Get("namespaces"), name)
	if o == nil {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(o.Decoded.(*corev1.Namespace).Spec.Finalizers), func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := c.writer.Finalize(name, kept)
	c.collectError(err)
}

// deleteAll deletes what a selector matches and returns how much is left.
func (c *Collector) deleteAll(r *kinds.Resource, sel read.Selector) int {
	snap, rv, err := c.store.Snapshot(r, 0)
	if err != nil {
		return 0
	}
	left := 0
	for _, o := range read.Collect(snap, rv, "", read.Options{Selector: sel}).Items {
		if o.Decoded.GetDeletionTimestamp() != nil {
			left++
			continue
		}
		if _, gone, err := c.writer.Delete(r, o.Key, metav1.DeleteOptions{}); err == nil && !gone {
			left++
		}
	}
	return left
}

// emptyCRD deletes the objects of a deleted CRD, and then the CRD.
func (c *Collector) emptyCRD(o *store.Object) {
	d, err := kinds.ParseCRD(o.Decoded)
	if err != nil {
		return
	}
	if r := c.kinds.Get(d.Spec.Names.Plural + "." + d.Spec.Group); r != nil && r.Custom && c.deleteAll(r, read.Selector{Resource: r}) > 0 {
		return
	}
	c.dropFinalizer(c.kinds.Get(kinds.CRDID), o, kinds.CRDFinalizer)
}

// expireEvents deletes Events nobody has touched for the configured time.
func (c *Collector) expireEvents() {
	r := c.kinds.Get("events")
	snap, rv, err := c.store.Snapshot(r, 0)
	if err != nil {
		return
	}
	cut := c.store.Now().Add(-c.eventTTL)
	for _, o := range read.Collect(snap, rv, "", read.Options{Selector: read.Selector{Resource: r}}).Items {
		e := o.Decoded.(*corev1.Event)
		if e.CreationTimestamp.Time.Before(cut) && e.LastTimestamp.Time.Before(cut) {
			_, _, err := c.writer.Delete(r, o.Key, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new(e.ResourceVersion)}})
			c.collectError(err)
		}
	}
}
