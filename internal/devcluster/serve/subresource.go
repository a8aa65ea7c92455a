package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
)

func (a *Server) subresource(c *call) error {
	switch {
	case c.sub == "status" && c.res.HasStatus:
		switch c.req.Method {
		case http.MethodGet:
			return a.handleGet(c)
		case http.MethodPut:
			return a.handleUpdate(c)
		case http.MethodPatch:
			return a.handlePatch(c)
		}
		return methodNotAllowed()
	case !slices.Contains(c.res.Subresources, c.sub):
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

func (a *Server) handleLog(c *call) error {
	o := a.store.Get(c.res, c.key())
	if o == nil {
		return apierrors.NewNotFound(c.res.GroupResource(), c.name)
	}
	c.w.Header().Set("Content-Type", "text/plain")
	pod := o.Decoded.(*corev1.Pod)
	_, err := fmt.Fprintf(c.w, "pod %s on node %q is %s; dev cluster pods write no logs\n", pod.Name, pod.Spec.NodeName, pod.Status.Phase)
	return quietly(err)
}

func (a *Server) handleBinding(c *call) error {
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
		if pod := a.store.Get(c.res, c.key()); pod != nil && pod.Decoded.GetUID() != b.UID {
			return apierrors.NewConflict(c.res.GroupResource(), c.name, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.Decoded.GetUID()))
		}
	}
	if err := a.writer.Bind(c.key(), b.Target.Name, o.DryRun); err != nil {
		return err
	}
	return c.json(http.StatusCreated, success())
}

func success() metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated}
}

// handleEviction deletes the pod; there are no disruption budgets to hold it.
func (a *Server) handleEviction(c *call) error {
	var e policyv1.Eviction
	if err := c.read(&e); err != nil {
		return err
	}
	o := metav1.DeleteOptions{}
	if e.DeleteOptions != nil {
		o = *e.DeleteOptions
	}
	if _, _, err := a.writer.Delete(c.res, c.key(), o); err != nil {
		return err
	}
	return c.json(http.StatusCreated, success())
}

// handleFinalize lets a client remove the finalizers that hold a namespace.
func (a *Server) handleFinalize(c *call) error {
	obj, _, err := c.decode(kinds.IgnoreFields)
	if err != nil {
		return err
	}
	done, err := a.writer.Finalize(c.name, obj.(*corev1.Namespace).Spec.Finalizers)
	if err != nil {
		return err
	}
	return c.object(http.StatusOK, done)
}
