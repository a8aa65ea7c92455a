package devcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// parseDeleteOptions reads DeleteOptions from the body or, without one, the parameters.
func (c *call) parseDeleteOptions() (metav1.DeleteOptions, error) {
	var o metav1.DeleteOptions
	data, err := c.body()
	if err != nil {
		return o, err
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &o); err != nil {
			return o, apierrors.NewBadRequest(fmt.Sprintf("DeleteOptions: json parse error: %v", err))
		}
		if o.Kind != "" && o.Kind != "DeleteOptions" {
			return o, apierrors.NewBadRequest(fmt.Sprintf("DeleteOptions: the body is of kind %q", o.Kind))
		}
	} else if err := c.deleteParameters(&o); err != nil {
		return o, err
	}
	var errs field.ErrorList
	if o.OrphanDependents != nil && o.PropagationPolicy != nil {
		errs = append(errs, field.Invalid(field.NewPath("propagationPolicy"), *o.PropagationPolicy, "orphanDependents and deletionPropagation cannot be both set"))
	}
	known := []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan}
	if p := o.PropagationPolicy; p != nil && !slices.Contains(known, *p) {
		errs = append(errs, field.NotSupported(field.NewPath("propagationPolicy"), *p, known))
	}
	for _, d := range o.DryRun {
		if d != metav1.DryRunAll {
			errs = append(errs, field.NotSupported(field.NewPath("dryRun"), d, []string{metav1.DryRunAll}))
		}
	}
	if len(errs) > 0 {
		return o, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return o, nil
}

func (c *call) deleteParameters(o *metav1.DeleteOptions) error {
	q := c.req.URL.Query()
	o.DryRun = q["dryRun"]
	if s := q.Get("gracePeriodSeconds"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return badParameter("gracePeriodSeconds", s, err)
		}
		o.GracePeriodSeconds = &n
	}
	if s := q.Get("propagationPolicy"); s != "" {
		o.PropagationPolicy = new(metav1.DeletionPropagation(s))
	}
	if s := q.Get("orphanDependents"); s != "" {
		o.OrphanDependents = new(truth(s))
	}
	return nil
}

func (a *api) handleDelete(c *call) error {
	o, err := c.parseDeleteOptions()
	if err != nil {
		return err
	}
	done, gone, err := a.delete(c.res, c.key(), o)
	if err != nil {
		return err
	}
	if gone && !c.res.returnsDeleted {
		return c.json(http.StatusOK, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusSuccess,
			Details:  &metav1.StatusDetails{Name: c.name, Group: c.res.group, Kind: c.res.plural, UID: done.obj.GetUID()},
		})
	}
	code := http.StatusOK
	if !gone && o.OrphanDependents != nil && !*o.OrphanDependents {
		code = http.StatusAccepted
	}
	return c.object(code, done)
}

// delete begins or finishes the deletion of an object: it is gone at once, or
// marked and held by its grace period or finalizers. Errors are Status errors.
func (a *api) delete(r *resource, key string, o metav1.DeleteOptions) (*object, bool, error) {
	for {
		cur := a.store.get(r, key)
		if cur == nil {
			return nil, false, apierrors.NewNotFound(r.groupResource(), key[strings.IndexByte(key, '/')+1:])
		}
		if err := deletePrecondition(r, cur, o.Preconditions); err != nil {
			return nil, false, err
		}
		next, gone := a.markDeleted(r, cur, o)
		var done *object
		var err error
		switch {
		case gone && len(o.DryRun) > 0:
			return cur, true, nil
		case gone:
			done, err = a.remove(r, cur)
			if err == nil && r.returnsDeleted {
				done, err = dry(r, key, next, cur.rv)
			}
		case same(next, cur.obj):
			return cur, false, nil
		case len(o.DryRun) > 0:
			done, err = dry(r, key, next, cur.rv)
		default:
			done, err = a.store.commit(r, cur, next)
		}
		if err == nil {
			return done, gone, nil
		}
		if !errors.Is(err, errRaced) {
			return nil, false, apierrors.NewInternalError(err)
		}
	}
}

// remove takes an object out of the store.
func (a *api) remove(r *resource, cur *object) (*object, error) {
	done, err := a.store.commit(r, cur, nil)
	if err == nil && r.id() == crdID {
		a.unserve(cur.obj)
	}
	return done, err
}

func deletePrecondition(r *resource, cur *object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	name := cur.obj.GetName()
	if p.UID != nil && *p.UID != cur.obj.GetUID() {
		return apierrors.NewConflict(r.groupResource(), name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *p.UID, cur.obj.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != cur.obj.GetResourceVersion() {
		return apierrors.NewConflict(r.groupResource(), name,
			fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion, cur.obj.GetResourceVersion()))
	}
	return nil
}

// markDeleted returns the object as the deletion leaves it, and whether nothing holds it any more.
func (a *api) markDeleted(r *resource, cur *object, o metav1.DeleteOptions) (apiObject, bool) {
	next := cur.clone()
	setPropagation(r, next, o)
	grace := int64(0)
	pod, isPod := next.(*corev1.Pod)
	if isPod {
		grace = podGrace(pod, o)
	}
	now := a.store.now().Truncate(time.Second)
	if was := next.GetDeletionTimestamp(); was != nil {
		old := next.GetDeletionGracePeriodSeconds()
		if old != nil && grace < *old {
			next.SetDeletionTimestamp(new(metav1.NewTime(now.Add(time.Duration(grace) * time.Second))))
			next.SetDeletionGracePeriodSeconds(&grace)
		} else if old != nil {
			grace = *old
		}
	} else {
		next.SetDeletionTimestamp(new(metav1.NewTime(now.Add(time.Duration(grace) * time.Second))))
		next.SetDeletionGracePeriodSeconds(&grace)
		if next.GetGeneration() > 0 {
			next.SetGeneration(next.GetGeneration() + 1)
		}
	}
	if ns, ok := next.(*corev1.Namespace); ok {
		ns.Status.Phase = corev1.NamespaceTerminating
		return next, len(ns.Spec.Finalizers) == 0 && len(next.GetFinalizers()) == 0
	}
	return next, grace == 0 && len(next.GetFinalizers()) == 0
}

// podGrace is how long a pod may take to end.
func podGrace(pod *corev1.Pod, o metav1.DeleteOptions) int64 {
	var grace int64
	switch {
	case o.GracePeriodSeconds != nil:
		grace = *o.GracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return 0
	}
	if grace < 0 {
		return 1
	}
	return grace
}

// setPropagation turns the policy into the finalizer that carries it out.
func setPropagation(r *resource, obj apiObject, o metav1.DeleteOptions) {
	finalizers := obj.GetFinalizers()
	orphan := slices.Contains(finalizers, metav1.FinalizerOrphanDependents)
	foreground := slices.Contains(finalizers, metav1.FinalizerDeleteDependents)
	switch {
	case o.OrphanDependents != nil:
		orphan, foreground = *o.OrphanDependents, false
	case o.PropagationPolicy != nil:
		orphan = *o.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *o.PropagationPolicy == metav1.DeletePropagationForeground
	case !orphan && !foreground:
		orphan = r.orphansByDefault
	}
	kept := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	obj.SetFinalizers(kept)
}

// handleDeleteCollection deletes what a selection matches and answers the list of it.
func (a *api) handleDeleteCollection(c *call) error {
	if c.res.namespaced && c.namespace == "" || c.res.plural == "namespaces" {
		return methodNotAllowed()
	}
	o, err := c.parseDeleteOptions()
	if err != nil {
		return err
	}
	lo, err := parseListOptions(c.res, c.namespace, "", c.req.URL.Query())
	if err != nil {
		return err
	}
	p, err := a.list(c.req.Context(), c.res, lo)
	if err != nil {
		return err
	}
	for _, obj := range p.items {
		if _, _, err := a.delete(c.res, obj.key, o); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.listOf(p, metav1.ListMeta{ResourceVersion: strconv.FormatUint(p.rv, 10), Continue: p.next, RemainingItemCount: p.remaining})
}
