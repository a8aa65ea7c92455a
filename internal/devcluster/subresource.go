package devcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (a *api) subresource(c *call) error {
	switch {
	case c.sub == "status" && c.res.hasStatus:
		switch c.req.Method {
		case http.MethodGet:
			return a.handleGet(c)
		case http.MethodPut:
			return a.handleUpdate(c)
		case http.MethodPatch:
			return a.handlePatch(c)
		}
		return methodNotAllowed()
	case !slices.Contains(c.res.subresources, c.sub):
		return notServed()
	case c.sub == "log" && c.req.Method == http.MethodGet:
		return a.handleLog(c)
	case c.sub == "binding" && c.req.Method == http.MethodPost:
		return a.handleBinding(c)
	case c.sub == "eviction" && c.req.Method == http.MethodPost:
		return a.handleEviction(c)
	case c.sub == "finalize" && c.req.Method == http.MethodPut:
		return a.handleFinalize(c)
	case c.sub == "token" && c.req.Method == http.MethodPost:
		return a.handleToken(c)
	}
	return methodNotAllowed()
}

// read decodes a sub-resource's body.
func (c *call) read(into any) error {
	data, err := c.body()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("%s: json parse error: %v", c.sub, err))
	}
	return nil
}

func (a *api) handleLog(c *call) error {
	o := a.store.get(c.res, c.key())
	if o == nil {
		return apierrors.NewNotFound(c.res.groupResource(), c.name)
	}
	c.w.Header().Set("Content-Type", "text/plain")
	pod := o.obj.(*corev1.Pod)
	_, err := fmt.Fprintf(c.w, "pod %s on node %q is %s; dev cluster pods write no logs\n", pod.Name, pod.Spec.NodeName, pod.Status.Phase)
	return quietly(err)
}

func (a *api) handleBinding(c *call) error {
	o, _, err := c.writeOptions()
	if err != nil {
		return err
	}
	var b corev1.Binding
	if err := c.read(&b); err != nil {
		return err
	}
	if b.Target.Name == "" || (b.Target.Kind != "" && b.Target.Kind != "Node") {
		return apierrors.NewBadRequest("binding: target must name a Node")
	}
	if b.UID != "" {
		if pod := a.store.get(c.res, c.key()); pod != nil && pod.obj.GetUID() != b.UID {
			return apierrors.NewConflict(c.res.groupResource(), c.name, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.obj.GetUID()))
		}
	}
	if err := a.bind(c.key(), b.Target.Name, o.dryRun); err != nil {
		return err
	}
	return c.json(http.StatusCreated, success())
}

func success() metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated}
}

// bind gives a pod its node. Errors are Status errors.
func (a *api) bind(key, node string, dryRun bool) error {
	r := a.registry.get("pods")
	for {
		cur := a.store.get(r, key)
		if cur == nil {
			return apierrors.NewNotFound(r.groupResource(), key)
		}
		pod := cur.clone().(*corev1.Pod)
		switch {
		case pod.DeletionTimestamp != nil:
			return apierrors.NewConflict(r.groupResource(), pod.Name, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name))
		case pod.Spec.NodeName != "":
			return apierrors.NewConflict(r.groupResource(), pod.Name, fmt.Errorf("pod %s is already assigned to node %q", pod.Name, pod.Spec.NodeName))
		case dryRun:
			return nil
		}
		pod.Spec.NodeName = node
		setPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, metav1.NewTime(a.store.now()))
		if _, err := a.store.commit(r, cur, pod); err == nil {
			return nil
		} else if !errors.Is(err, errRaced) {
			return apierrors.NewInternalError(err)
		}
	}
}

// handleEviction deletes the pod; there are no disruption budgets to hold it.
func (a *api) handleEviction(c *call) error {
	var e policyv1.Eviction
	if err := c.read(&e); err != nil {
		return err
	}
	o := metav1.DeleteOptions{}
	if e.DeleteOptions != nil {
		o = *e.DeleteOptions
	}
	if _, _, err := a.delete(c.res, c.key(), o); err != nil {
		return err
	}
	return c.json(http.StatusCreated, success())
}

// handleFinalize lets a client remove the finalizers that hold a namespace.
func (a *api) handleFinalize(c *call) error {
	obj, _, err := c.decode(checkIgnore)
	if err != nil {
		return err
	}
	done, err := a.finalize(c.name, obj.(*corev1.Namespace).Spec.Finalizers)
	if err != nil {
		return err
	}
	return c.object(http.StatusOK, done)
}

// finalize sets a namespace's finalizers; one that is being deleted goes with the last.
func (a *api) finalize(name string, finalizers []corev1.FinalizerName) (*object, error) {
	r := a.registry.get("namespaces")
	for {
		cur := a.store.get(r, name)
		if cur == nil {
			return nil, apierrors.NewNotFound(r.groupResource(), name)
		}
		ns := cur.clone().(*corev1.Namespace)
		ns.Spec.Finalizers = finalizers
		var done *object
		var err error
		if len(finalizers) == 0 && ns.DeletionTimestamp != nil && len(ns.Finalizers) == 0 {
			done, err = a.remove(r, cur)
		} else {
			done, err = a.store.commit(r, cur, ns)
		}
		if err == nil {
			return done, nil
		}
		if !errors.Is(err, errRaced) {
			return nil, apierrors.NewInternalError(err)
		}
	}
}

// setPodCondition adds or replaces a condition, moving its time only when its status changes.
func setPodCondition(p *corev1.Pod, c corev1.PodCondition, now metav1.Time) {
	c.LastTransitionTime = metav1.NewTime(now.Rfc3339Copy().Time)
	for i, was := range p.Status.Conditions {
		if was.Type == c.Type {
			if was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
			p.Status.Conditions[i] = c
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}
