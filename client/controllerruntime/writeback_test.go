package controllerruntime

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// An object from the cache lacks what the reflector's spec leaves out, and a PUT would remove it.
func TestAnUpdateThatWouldRemoveWhatTheIndexLeavesOutIsNotSent(t *testing.T) {
	env := dptest.Start(t, dptest.Config{
		Resources:  []string{"configmaps", "pods", "jobs.batch"},
		DropFields: map[string][]string{"configmaps": {"data.secret"}, "pods": {"status.message", "spec.hostname"}},
	})
	mirror(t, env,
		&corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
			Data: map[string]string{"secret": "s", "open": "1"},
		},
		pod("default", "p", ""),
		&corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "n"}},
	)
	o := newOperated(t, env, Options{})
	env.Go(o.mgr.Start)
	c, ctx := o.mgr.GetClient(), t.Context()
	refused := func(what string, err error, field string) {
		t.Helper()
		if !errors.Is(err, client.ErrDroppedFields) || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "is not sent") {
			t.Errorf("%s: %v, want a refusal that names %s", what, err, field)
		}
	}
	secret := func(open string) {
		t.Helper()
		if got := dptest.Get[corev1.ConfigMap](env, "configmaps", "default/a"); got.Data["secret"] != "s" || got.Data["open"] != open {
			t.Errorf("the API server has %v, want %s and the secret", got.Data, open)
		}
	}
	var have corev1.ConfigMap
	eventually(t, "the cache answers", func() bool { return c.Get(ctx, keyOf("a"), &have) == nil })
	if len(have.Data) != 1 {
		t.Fatalf("the index has %v", have.Data)
	}
	before := have.DeepCopy()
	have.Data["open"] = "2"
	refused("update", c.Update(ctx, &have), "data.secret")
	secret("1")
	if err := c.Patch(ctx, &have, crclient.MergeFrom(before)); err != nil {
		t.Errorf("patch: %v", err)
	}
	secret("2")
	var p corev1.Pod
	if err := c.Get(ctx, keyOf("p"), &p); err != nil {
		t.Fatal(err)
	}
	refused("update of the status", c.Status().Update(ctx, &p), "status.message")
	refused("update", c.Update(ctx, &p), "spec.hostname, status.message")
	if err := c.Create(ctx, pod("default", "q", "")); err != nil {
		t.Errorf("create: %v", err)
	}
	var node corev1.Node // read from the API server: the index has none
	if err := o.mgr.GetAPIReader().Get(ctx, crclient.ObjectKey{Name: "n"}, &node); err != nil {
		t.Fatal(err)
	}
	node.Spec.Unschedulable = true
	if err := c.Update(ctx, &node); err != nil {
		t.Errorf("update of a kind that the index does not have: %v", err)
	}
}
