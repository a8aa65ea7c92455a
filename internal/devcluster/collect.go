package devcluster

import (
	"context"
	"errors"
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

// noteChange tells the collector what a commit may have let go. It runs under the
// store's lock.
func (a *api) noteChange(t *table, e *event) {
	if e.junk != nil {
		return
	}
	o := e.cur
	if o == nil {
		o = e.gone
		for at := range a.store.owned[o.obj.GetUID()] {
			a.dirty.add(at)
		}
		if ns := o.obj.GetNamespace(); ns != "" {
			a.noteWaiting(ref{"namespaces", ns})
		}
		if t.res.custom {
			a.noteWaiting(ref{crdID, t.res.id()})
		}
	}
	if e.cur != nil && (len(o.obj.GetOwnerReferences()) > 0 || o.obj.GetDeletionTimestamp() != nil) {
		a.dirty.add(ref{t.res.id(), o.key})
	}
	// An owner that waits for its dependents looks again at each of them that changes.
	for _, owner := range o.obj.GetOwnerReferences() {
		if at, ok := a.store.uids[owner.UID]; ok && (e.gone != nil || e.prev != nil) {
			a.noteWaiting(at)
		}
	}
}

// noteWaiting makes the collector look at an object again if it is being deleted.
func (a *api) noteWaiting(at ref) {
	t := a.store.tables[at.table]
	if t == nil {
		return
	}
	if o, _ := t.live.Get(&object{key: at.key}); o != nil && o.obj.GetDeletionTimestamp() != nil {
		a.dirty.add(at)
	}
}

// expireEvery is how often Events are checked for their age.
const expireEvery = time.Minute

// collect does owner garbage collection, empties deleted namespaces and expires Events.
func (a *api) collect(ctx context.Context) error {
	a.noteEverything()
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		for _, at := range a.dirty.take() {
			if ctx.Err() != nil {
				return nil
			}
			a.collectOne(at)
		}
		select {
		case <-a.dirty.wake:
		case <-tick.C:
			a.expireEvents()
		case <-ctx.Done():
			return nil
		}
	}
}

// noteEverything makes the collector look at what a restart may have left undone.
func (a *api) noteEverything() {
	a.store.mu.RLock()
	defer a.store.mu.RUnlock()
	for id, t := range a.store.tables {
		t.live.Ascend(func(o *object) bool {
			if len(o.obj.GetOwnerReferences()) > 0 || o.obj.GetDeletionTimestamp() != nil {
				a.dirty.add(ref{id, o.key})
			}
			return true
		})
	}
}

func (a *api) collectOne(at ref) {
	r := a.registry.get(at.table)
	if r == nil {
		return
	}
	o := a.store.get(r, at.key)
	if o == nil {
		return
	}
	if o.obj.GetDeletionTimestamp() != nil {
		switch {
		case r.id() == "namespaces":
			a.emptyNamespace(o.obj.GetName())
		case r.id() == crdID:
			a.emptyCRD(o)
		case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
			a.orphanDependents(r, o)
		case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerDeleteDependents):
			a.deleteDependents(r, o)
		}
		return
	}
	a.checkOwners(r, o)
}

// checkOwners deletes an object all of whose owners are gone, and forgets the gone
// ones of an object that has another.
func (a *api) checkOwners(r *resource, o *object) {
	owners := o.obj.GetOwnerReferences()
	if len(owners) == 0 {
		return
	}
	solid, waiting := 0, 0
	drop := map[types.UID]bool{}
	for _, owner := range owners {
		switch obj := a.store.owner(owner, o.obj.GetNamespace()); {
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
		a.dropOwners(r, o.key, drop)
	case waiting > 0 && len(a.store.dependents(o.obj.GetUID())) > 0:
		a.deleteFor(r, o, metav1.DeletePropagationForeground)
	default:
		a.deleteFor(r, o, metav1.DeletePropagationBackground)
	}
}

// deleteFor deletes on behalf of an owner; finalizers already on the object decide first.
func (a *api) deleteFor(r *resource, o *object, policy metav1.DeletionPropagation) {
	switch {
	case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(o.obj.GetFinalizers(), metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	uid := o.obj.GetUID()
	_, _, err := a.delete(r, o.key, metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &uid}})
	a.collectError(err)
}

// collectError reports a failure of the collector that is not a lost race.
func (a *api) collectError(err error) {
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		a.warn("collector", err, "")
	}
}

// edit changes an object as the collector; change returns false to leave it alone.
func (a *api) edit(r *resource, key string, change func(apiObject) bool) {
	_, err := a.update(r, key, writeOptions{manager: "garbage-collector"}, func(cur *object) (apiObject, error) {
		next := cur.clone()
		if !change(next) {
			return nil, errUnchanged
		}
		return next, nil
	})
	if !errors.Is(err, errUnchanged) {
		a.collectError(err)
	}
}

var errUnchanged = errors.New("devcluster: nothing to change")

func (a *api) dropOwners(r *resource, key string, drop map[types.UID]bool) {
	a.edit(r, key, func(o apiObject) bool {
		kept := slices.DeleteFunc(slices.Clone(o.GetOwnerReferences()), func(owner metav1.OwnerReference) bool { return drop[owner.UID] })
		changed := len(kept) != len(o.GetOwnerReferences())
		o.SetOwnerReferences(kept)
		return changed
	})
}

func (a *api) dropFinalizer(r *resource, o *object, name string) {
	uid := o.obj.GetUID()
	a.edit(r, o.key, func(obj apiObject) bool {
		if obj.GetUID() != uid || !slices.Contains(obj.GetFinalizers(), name) {
			return false
		}
		obj.SetFinalizers(slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == name }))
		return true
	})
}

// orphanDependents lets the dependents of a deleted owner live without it.
func (a *api) orphanDependents(r *resource, o *object) {
	for _, at := range a.store.dependents(o.obj.GetUID()) {
		if dr := a.registry.get(at.table); dr != nil {
			a.dropOwners(dr, at.key, map[types.UID]bool{o.obj.GetUID(): true})
		}
	}
	a.dropFinalizer(r, o, metav1.FinalizerOrphanDependents)
}

// deleteDependents deletes what a foreground-deleted owner has, and lets the owner go
// when nothing that blocks it is left.
func (a *api) deleteDependents(r *resource, o *object) {
	blocked := false
	uid := o.obj.GetUID()
	for _, at := range a.store.dependents(uid) {
		dr := a.registry.get(at.table)
		if dr == nil {
			continue
		}
		dep := a.store.get(dr, at.key)
		if dep == nil {
			continue
		}
		for _, owner := range dep.obj.GetOwnerReferences() {
			blocked = blocked || owner.UID == uid && owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
		}
		if dep.obj.GetDeletionTimestamp() == nil {
			a.dirty.add(at)
		}
	}
	if !blocked {
		a.dropFinalizer(r, o, metav1.FinalizerDeleteDependents)
	}
}

// emptyNamespace deletes what a deleted namespace holds, and then the namespace.
func (a *api) emptyNamespace(name string) {
	left := 0
	for _, r := range a.registry.all() {
		if !r.namespaced {
			continue
		}
		left += a.deleteAll(r, selector{namespace: name, res: r})
	}
	if left > 0 {
		return // each object that goes makes us look again
	}
	o := a.store.get(a.registry.get("namespaces"), name)
	if o == nil {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(o.obj.(*corev1.Namespace).Spec.Finalizers), func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := a.finalize(name, kept)
	a.collectError(err)
}

// deleteAll deletes what a selector matches and returns how much is left.
func (a *api) deleteAll(r *resource, sel selector) int {
	snap, rv, err := a.store.snapshot(r, 0)
	if err != nil {
		return 0
	}
	left := 0
	for _, o := range collect(snap, rv, "", listOptions{selector: sel}).items {
		if o.obj.GetDeletionTimestamp() != nil {
			left++
			continue
		}
		if _, gone, err := a.delete(r, o.key, metav1.DeleteOptions{}); err == nil && !gone {
			left++
		}
	}
	return left
}

// emptyCRD deletes the objects of a deleted CRD, and then the CRD.
func (a *api) emptyCRD(o *object) {
	d, err := parseCRD(o.obj)
	if err != nil {
		return
	}
	if r := a.registry.get(d.Spec.Names.Plural + "." + d.Spec.Group); r != nil && r.custom && a.deleteAll(r, selector{res: r}) > 0 {
		return
	}
	a.dropFinalizer(a.registry.get(crdID), o, crdFinalizer)
}

// expireEvents deletes Events nobody has touched for the configured time.
func (a *api) expireEvents() {
	r := a.registry.get("events")
	snap, rv, err := a.store.snapshot(r, 0)
	if err != nil {
		return
	}
	cut := a.store.now().Add(-a.cfg.EventTTL)
	for _, o := range collect(snap, rv, "", listOptions{selector: selector{res: r}}).items {
		e := o.obj.(*corev1.Event)
		if e.CreationTimestamp.Time.Before(cut) && e.LastTimestamp.Time.Before(cut) {
			_, _, err := a.delete(r, o.key, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new(e.ResourceVersion)}})
			a.collectError(err)
		}
	}
}
