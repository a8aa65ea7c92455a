package devcluster

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
)

// dirtySet is the collector's work: places to look at, each once however often it
// was named. Adding never blocks, so the store may do it under its lock.
type dirtySet struct {
	mu    sync.Mutex
	queue []ref
	in    map[ref]struct{}
	wake  chan struct{}
}

func newDirtySet() *dirtySet {
	return &dirtySet{in: map[ref]struct{}{}, wake: make(chan struct{}, 1)}
}

func (d *dirtySet) add(at ref) {
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

func (d *dirtySet) take() []ref {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queue
	d.queue, d.in = nil, map[ref]struct{}{}
	return q
}

// note marks what a commit may have let go. It is called under the store's lock.
func (d *dirtySet) note(in locked, t *table, e *event) {
	if e.junk != nil {
		return
	}
	o := e.cur
	if o == nil {
		o = e.gone
		in.dependents(o.obj.GetUID(), d.add)
		if ns := o.obj.GetNamespace(); ns != "" {
			d.noteWaiting(in, ref{"namespaces", ns})
		}
		if t.res.custom {
			d.noteWaiting(in, ref{crdID, t.res.id()})
		}
	}
	if e.cur != nil && (len(o.obj.GetOwnerReferences()) > 0 || o.obj.GetDeletionTimestamp() != nil) {
		d.add(ref{t.res.id(), o.key})
	}
	// An owner that waits for its dependents looks again at each of them that changes.
	for _, owner := range o.obj.GetOwnerReferences() {
		if at, ok := in.find(owner.UID); ok && (e.gone != nil || e.prev != nil) {
			d.noteWaiting(in, at)
		}
	}
}

// noteWaiting makes the collector look at an object again if it is being deleted.
func (d *dirtySet) noteWaiting(in locked, at ref) {
	if o := in.get(at); o != nil && o.obj.GetDeletionTimestamp() != nil {
		d.add(at)
	}
}

// collector does what the cluster does to objects nobody asks for: it collects the dependents of
// deleted owners, empties deleted namespaces and CRDs, and expires Events.
type collector struct {
	store    *store
	kinds    *registry
	writer   *writer
	log      *slog.Logger
	eventTTL time.Duration
	dirty    *dirtySet // what it looks at next
}

// expireEvery is how often Events are checked for their age.
const expireEvery = time.Minute

// newCollector makes a collector; dirty is told of every change by the store.
func newCollector(s *store, kinds *registry, w *writer, log *slog.Logger, eventTTL time.Duration, dirty *dirtySet) *collector {
	return &collector{store: s, kinds: kinds, writer: w, log: log, eventTTL: eventTTL, dirty: dirty}
}

// run collects until ctx ends.
func (c *collector) run(ctx context.Context) error {
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
func (c *collector) noteEverything() {
	c.store.each(func(at ref, o *object) {
		if len(o.obj.GetOwnerReferences()) > 0 || o.obj.GetDeletionTimestamp() != nil {
			c.dirty.add(at)
		}
	})
}

func (c *collector) collectOne(at ref) {
	r := c.kinds.get(at.table)
	if r == nil {
		return
	}
	o := c.store.get(r, at.key)
	if o == nil {
		return
	}
	if o.obj.GetDeletionTimestamp() != nil {
		switch {
		case r.id() == "namespaces":
			c.emptyNamespace(o.obj.GetName())
		case r.id() == crdID:
			c.emptyCRD(o)
		case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
			c.orphanDependents(r, o)
		case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerDeleteDependents):
			c.deleteDependents(r, o)
		}
		return
	}
	c.checkOwners(r, o)
}

// checkOwners deletes an object all of whose owners are gone, and forgets the gone
// ones of an object that has another.
func (c *collector) checkOwners(r *resource, o *object) {
	owners := o.obj.GetOwnerReferences()
	if len(owners) == 0 {
		return
	}
	solid, waiting := 0, 0
	drop := map[types.UID]bool{}
	for _, owner := range owners {
		switch obj := c.store.owner(owner, o.obj.GetNamespace()); {
		case obj == nil:
			drop[owner.UID] = true
		case slices.Contains(obj.obj.GetFinalizers(), metav1.FinalizerDeleteDependents) && obj.obj.GetDeletionTimestamp() != nil &&
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
		c.dropOwners(r, o.key, drop)
	case waiting > 0 && len(c.store.dependents(o.obj.GetUID())) > 0:
		c.deleteFor(r, o, metav1.DeletePropagationForeground)
	default:
		c.deleteFor(r, o, metav1.DeletePropagationBackground)
	}
}

// deleteFor deletes on behalf of an owner; finalizers already on the object decide first.
func (c *collector) deleteFor(r *resource, o *object, policy metav1.DeletionPropagation) {
	switch {
	case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	uid := o.obj.GetUID()
	_, _, err := c.writer.delete(r, o.key, metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &uid}})
	c.collectError(err)
}

// collectError reports a failure of the collector that is not a lost race.
func (c *collector) collectError(err error) {
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		warn(c.log, "collector", err, "")
	}
}

// edit changes an object as the collector; change returns false to leave it alone.
func (c *collector) edit(r *resource, key string, change func(apiObject) bool) {
	_, err := c.writer.update(r, key, writeOptions{manager: "garbage-collector"}, func(cur *object) (apiObject, error) {
		next := cur.clone()
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

func (c *collector) dropOwners(r *resource, key string, drop map[types.UID]bool) {
	c.edit(r, key, func(o apiObject) bool {
		kept := slices.DeleteFunc(slices.Clone(o.GetOwnerReferences()), func(owner metav1.OwnerReference) bool { return drop[owner.UID] })
		changed := len(kept) != len(o.GetOwnerReferences())
		o.SetOwnerReferences(kept)
		return changed
	})
}

func (c *collector) dropFinalizer(r *resource, o *object, name string) {
	uid := o.obj.GetUID()
	c.edit(r, o.key, func(obj apiObject) bool {
		if obj.GetUID() != uid || !slices.Contains(obj.GetFinalizers(), name) {
			return false
		}
		obj.SetFinalizers(slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == name }))
		return true
	})
}

// orphanDependents lets the dependents of a deleted owner live without it.
func (c *collector) orphanDependents(r *resource, o *object) {
	for _, at := range c.store.dependents(o.obj.GetUID()) {
		if dr := c.kinds.get(at.table); dr != nil {
			c.dropOwners(dr, at.key, map[types.UID]bool{o.obj.GetUID(): true})
		}
	}
	c.dropFinalizer(r, o, metav1.FinalizerOrphanDependents)
}

// deleteDependents deletes what a foreground-deleted owner has, and lets the owner go
// when nothing that blocks it is left.
func (c *collector) deleteDependents(r *resource, o *object) {
	blocked := false
	uid := o.obj.GetUID()
	for _, at := range c.store.dependents(uid) {
		dr := c.kinds.get(at.table)
		if dr == nil {
			continue
		}
		dep := c.store.get(dr, at.key)
		if dep == nil {
			continue
		}
		for _, owner := range dep.obj.GetOwnerReferences() {
			blocked = blocked || owner.UID == uid && owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
		}
		if dep.obj.GetDeletionTimestamp() == nil {
			c.dirty.add(at)
		}
	}
	if !blocked {
		c.dropFinalizer(r, o, metav1.FinalizerDeleteDependents)
	}
}

// emptyNamespace deletes what a deleted namespace holds, and then the namespace.
func (c *collector) emptyNamespace(name string) {
	left := 0
	for _, r := range c.kinds.all() {
		if !r.namespaced {
			continue
		}
		left += c.deleteAll(r, selector{namespace: name, res: r})
	}
	if left > 0 {
		return // each object that goes makes us look again
	}
	o := c.store.get(c.kinds.get("namespaces"), name)
	if o == nil {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(o.obj.(*corev1.Namespace).Spec.Finalizers), func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := c.writer.finalize(name, kept)
	c.collectError(err)
}

// deleteAll deletes what a selector matches and returns how much is left.
func (c *collector) deleteAll(r *resource, sel selector) int {
	snap, rv, err := c.store.snapshot(r, 0)
	if err != nil {
		return 0
	}
	left := 0
	for _, o := range collect(snap, rv, "", listOptions{selector: sel}).items {
		if o.obj.GetDeletionTimestamp() != nil {
			left++
			continue
		}
		if _, gone, err := c.writer.delete(r, o.key, metav1.DeleteOptions{}); err == nil && !gone {
			left++
		}
	}
	return left
}

// emptyCRD deletes the objects of a deleted CRD, and then the CRD.
func (c *collector) emptyCRD(o *object) {
	d, err := parseCRD(o.obj)
	if err != nil {
		return
	}
	if r := c.kinds.get(d.Spec.Names.Plural + "." + d.Spec.Group); r != nil && r.custom && c.deleteAll(r, selector{res: r}) > 0 {
		return
	}
	c.dropFinalizer(c.kinds.get(crdID), o, crdFinalizer)
}

// expireEvents deletes Events nobody has touched for the configured time.
func (c *collector) expireEvents() {
	r := c.kinds.get("events")
	snap, rv, err := c.store.snapshot(r, 0)
	if err != nil {
		return
	}
	cut := c.store.now().Add(-c.eventTTL)
	for _, o := range collect(snap, rv, "", listOptions{selector: selector{res: r}}).items {
		e := o.obj.(*corev1.Event)
		if e.CreationTimestamp.Time.Before(cut) && e.LastTimestamp.Time.Before(cut) {
			_, _, err := c.writer.delete(r, o.key, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new(e.ResourceVersion)}})
			c.collectError(err)
		}
	}
}
