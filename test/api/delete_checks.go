package api

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const twoFinalizers = `{"metadata":{"finalizers":["x.io/a","x.io/b"]}}`

func checkDelete(t *testing.T, g Target) {
	t.Helper()
	t.Run("a final delete of most kinds answers a Status", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		g.post(t, path("leases", ns), object{"metadata": object{"name": "l"}}).ok(t)
		o := g.post(t, path("jobs", ns), job("j")).ok(t)
		if got := g.delete(t, path("leases", ns)+"/l", nil).ok(t); got.text("kind") != "Status" || got.text("status") != "Success" {
			t.Errorf("lease: %v", got)
		}
		got := g.delete(t, path("jobs", ns)+"/j", `{"propagationPolicy":"Background"}`).ok(t)
		if got.text("kind") != "Status" || got.text("details.uid") != o.text("metadata.uid") || got.text("details.name") != "j" || got.text("details.kind") != "jobs" || got.text("details.group") != "batch" {
			t.Errorf("job: %v", got)
		}
	})

	t.Run("a final delete of a pod answers the pod", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		g.post(t, p, pod("p")).ok(t)
		if got := g.delete(t, p+"/p", nil).ok(t); got.text("kind") != "Pod" || got.text("metadata.deletionTimestamp") == "" {
			t.Errorf("answer = %v, want the pod being deleted", got)
		}
		g.get(t, p+"/p").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
	})

	t.Run("finalizers hold an object until the last is gone", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		g.post(t, p, pod("p")).ok(t)
		g.patch(t, mergePatch, p+"/p", twoFinalizers).ok(t)
		o := g.delete(t, p+"/p", nil).ok(t)
		if o.text("metadata.deletionTimestamp") == "" || o.at("metadata.deletionGracePeriodSeconds") != 0.0 {
			t.Errorf("metadata = %v, want it marked", o["metadata"])
		}
		if again := g.delete(t, p+"/p", nil).ok(t); again.rv() != o.rv() {
			t.Error("a second delete changed the object")
		}
		s := g.watch(t, p+"?watch=1&resourceVersion="+o.rv())
		r := g.patch(t, mergePatch, p+"/p", `{"metadata":{"finalizers":["x.io/a","x.io/new"]}}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		if r.causes(t)["metadata.finalizers"] == "" {
			t.Errorf("causes = %v, want metadata.finalizers", r.causes(t))
		}
		one := g.patch(t, mergePatch, p+"/p", `{"metadata":{"finalizers":["x.io/a"]}}`).ok(t)
		s.want(t, "MODIFIED", "p")
		last := g.patch(t, mergePatch, p+"/p", `{"metadata":{"finalizers":null,"labels":{"late":"yes"}}}`).ok(t)
		if last.text("kind") != "Pod" || last.rv() != one.rv() || last.text("metadata.labels.late") != "yes" {
			t.Errorf("answer = %v, want what was asked for at the version before", last)
		}
		gone := s.want(t, "DELETED", "p")
		if f, _ := gone.at("metadata.finalizers").([]any); len(f) != 1 || gone.rv() == one.rv() {
			t.Errorf("the deleted object has finalizers %v at %s, want the stored ones at a version of its own", f, gone.rv())
		}
		g.get(t, p+"/p").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
	})

	t.Run("an update can remove the last finalizer too", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		g.patch(t, mergePatch, p+"/a", `{"metadata":{"finalizers":["x.io/a"]}}`).ok(t)
		o := g.delete(t, p+"/a", nil).ok(t)
		if o.text("kind") != "ConfigMap" {
			t.Errorf("answer = %v, want the held object", o)
		}
		o["metadata"].(map[string]any)["finalizers"] = nil
		g.put(t, p+"/a", o).ok(t)
		g.get(t, p+"/a").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
	})

	t.Run("preconditions are kept", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		o := g.post(t, p, configMap("a", nil)).ok(t)
		g.delete(t, p+"/a", `{"preconditions":{"uid":"other"}}`).want(t, http.StatusConflict, metav1.StatusReasonConflict)
		g.delete(t, p+"/a", `{"preconditions":{"resourceVersion":"1"}}`).want(t, http.StatusConflict, metav1.StatusReasonConflict)
		g.delete(t, p+"/a", object{"preconditions": object{"uid": o.text("metadata.uid"), "resourceVersion": o.rv()}}).ok(t)
	})

	t.Run("delete options are checked", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		g.delete(t, p+"/a", `{"propagationPolicy":"Sideways"}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		g.delete(t, p+"/a", `{"propagationPolicy":"Orphan","orphanDependents":true}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		g.delete(t, p+"/a", `{bad`).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		g.get(t, p+"/a").ok(t)
	})

	t.Run("a collection is deleted by selector", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 4)
		list := g.delete(t, p+"?labelSelector=odd%3Dtrue", nil).ok(t)
		if list.text("kind") != "ConfigMapList" || len(items(list)) != 2 {
			t.Errorf("answer = %v, want the list of what was deleted", list)
		}
		if got := names(g.get(t, p+mine).ok(t)); len(got) != 2 || got[0] != "cm-00" || got[1] != "cm-02" {
			t.Errorf("left = %v, want cm-00 and cm-02", got)
		}
	})

	t.Run("a bound pod gets its grace period", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		in := pod("p")
		in["spec"].(object)["nodeName"] = "nobody-runs-this-node"
		in["spec"].(object)["tolerations"] = []object{{"operator": "Exists"}}
		g.post(t, p, in).ok(t)
		o := g.delete(t, p+"/p", nil).ok(t)
		if o.at("metadata.deletionGracePeriodSeconds") != 30.0 || o.at("metadata.generation") != 2.0 {
			t.Errorf("metadata = %v, want 30 seconds of grace and generation 2", o["metadata"])
		}
		o = g.delete(t, p+"/p?gracePeriodSeconds=5", nil).ok(t)
		if o.at("metadata.deletionGracePeriodSeconds") != 5.0 {
			t.Errorf("metadata = %v, want the grace shortened to 5 seconds", o["metadata"])
		}
		o = g.delete(t, p+"/p", `{"gracePeriodSeconds":60}`).ok(t)
		if o.at("metadata.deletionGracePeriodSeconds") != 5.0 {
			t.Errorf("metadata = %v, want the grace not lengthened", o["metadata"])
		}
		g.delete(t, p+"/p", `{"gracePeriodSeconds":0}`).ok(t)
		g.get(t, p+"/p").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
	})

	t.Run("a finished pod needs no grace", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		in := pod("p")
		in["spec"].(object)["nodeName"] = "nobody-runs-this-node"
		in["spec"].(object)["tolerations"] = []object{{"operator": "Exists"}}
		g.post(t, p, in).ok(t)
		g.patch(t, mergePatch, p+"/p/status", `{"status":{"phase":"Succeeded"}}`).ok(t)
		g.delete(t, p+"/p", nil).ok(t)
		g.get(t, p+"/p").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
	})

	t.Run("a deleted namespace takes its content along", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		p := path("configmaps", ns)
		g.post(t, p, configMap("a", nil)).ok(t)
		g.patch(t, mergePatch, p+"/a", `{"metadata":{"finalizers":["x.io/a"]}}`).ok(t)
		g.delete(t, "/api/v1/namespaces/"+ns, nil).ok(t)
		if got := g.get(t, "/api/v1/namespaces/"+ns).ok(t).text("status.phase"); got != "Terminating" {
			t.Errorf("phase = %q, want Terminating", got)
		}
		r := g.post(t, p, configMap("b", nil)).want(t, http.StatusForbidden, metav1.StatusReasonForbidden)
		if d := r.status(t).Details; d == nil || len(d.Causes) == 0 || d.Causes[0].Type != "NamespaceTerminating" {
			t.Errorf("details = %+v, want the cause NamespaceTerminating", d)
		}
		eventually(t, "the object in the namespace is being deleted", func() bool {
			return g.get(t, p+"/a").ok(t).text("metadata.deletionTimestamp") != ""
		})
		g.patch(t, mergePatch, p+"/a", `{"metadata":{"finalizers":null}}`).ok(t)
		eventually(t, "the namespace is gone", func() bool { return g.get(t, "/api/v1/namespaces/"+ns).code == http.StatusNotFound })
	})
}
