package api

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func checkPatch(t *testing.T, g Target) {
	t.Helper()
	t.Run("a merge patch replaces lists and removes by null", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		g.post(t, p, pod("p")).ok(t)
		g.patch(t, mergePatch, p+"/p", `{"metadata":{"labels":{"a":"1","b":"2"},"finalizers":["x.io/a","x.io/b"]}}`).ok(t)
		o := g.patch(t, mergePatch, p+"/p", `{"metadata":{"labels":{"a":null},"finalizers":["x.io/c"]}}`).ok(t)
		if f, _ := o.at("metadata.finalizers").([]any); len(f) != 1 || o.at("metadata.labels.a") != nil || o.text("metadata.labels.b") != "2" {
			t.Errorf("metadata = %v", o["metadata"])
		}
		g.patch(t, mergePatch, p+"/p", `{"metadata":{"finalizers":null}}`).ok(t)
	})

	t.Run("a strategic patch merges lists by their keys", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		in := pod("p")
		in["spec"].(object)["containers"] = []object{{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}}
		g.post(t, p, in).ok(t)
		o := g.patch(t, strategic, p+"/p", `{"metadata":{"finalizers":["x.io/a"]},"spec":{"containers":[{"name":"b","image":"b:2"}]}}`).ok(t)
		c, _ := o.at("spec.containers").([]any)
		if len(c) != 2 {
			t.Fatalf("containers = %v, want both", c)
		}
		for _, v := range c {
			if m, _ := v.(map[string]any); m["name"] == "b" && m["image"] != "b:2" {
				t.Errorf("container b = %v", m)
			}
		}
		o = g.patch(t, strategic, p+"/p", `{"metadata":{"finalizers":["x.io/b"]}}`).ok(t)
		if f, _ := o.at("metadata.finalizers").([]any); len(f) != 2 {
			t.Errorf("finalizers = %v, want both", f)
		}
		o = g.patch(t, strategic, p+"/p", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["x.io/a","x.io/b"]}}`).ok(t)
		if f, _ := o.at("metadata.finalizers").([]any); len(f) != 0 {
			t.Errorf("finalizers = %v, want none", f)
		}
	})

	t.Run("a JSON patch applies its operations or none", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", object{"x": "y"})).ok(t)
		o := g.patch(t, jsonPatch, p+"/a", `[{"op":"test","path":"/data/k","value":"v"},{"op":"add","path":"/data/n","value":"1"},{"op":"remove","path":"/metadata/labels/x"}]`).ok(t)
		if o.text("data.n") != "1" || o.at("metadata.labels.x") != nil {
			t.Errorf("object = %v", o)
		}
		g.patch(t, jsonPatch, p+"/a", `[{"op":"add","path":"/data/m","value":"1"},{"op":"test","path":"/data/k","value":"no"}]`).
			want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		g.patch(t, jsonPatch, p+"/a", `[{"op":"remove","path":"/data/none"}]`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		if got := g.get(t, p+"/a").ok(t); got.rv() != o.rv() {
			t.Error("a failed patch changed the object")
		}
	})

	t.Run("a patch cannot rename", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		g.patch(t, mergePatch, p+"/a", `{"metadata":{"name":"b"}}`).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	})

	t.Run("malformed patches are refused", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		for _, bad := range []string{`{"metadata":`, `[]`, `"x"`, ``} {
			g.patch(t, mergePatch, p+"/a", bad).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			g.patch(t, strategic, p+"/a", bad).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
		for _, bad := range []string{`{}`, `[{"op"`, `"x"`} {
			g.patch(t, jsonPatch, p+"/a", bad).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
		g.patch(t, mergePatch, p+"/a", `{"data":5}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		g.patch(t, jsonType, p+"/a", `{}`).want(t, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType)
	})

	t.Run("owner references merge by uid", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		a := g.post(t, p, pod("a")).ok(t)
		b := g.post(t, p, pod("b")).ok(t)
		ref := func(o object, name string) object {
			return object{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": o.text("metadata.uid")}
		}
		g.post(t, p, pod("c")).ok(t)
		g.patch(t, strategic, p+"/c", object{"metadata": object{"ownerReferences": []object{ref(a, "a")}}}).ok(t)
		o := g.patch(t, strategic, p+"/c", object{"metadata": object{"ownerReferences": []object{ref(b, "b")}}}).ok(t)
		if refs, _ := o.at("metadata.ownerReferences").([]any); len(refs) != 2 {
			t.Errorf("ownerReferences = %v, want both", refs)
		}
		o = g.patch(t, strategic, p+"/c", object{"metadata": object{"ownerReferences": []object{{"$patch": "delete", "uid": a.text("metadata.uid")}}}}).ok(t)
		if refs, _ := o.at("metadata.ownerReferences").([]any); len(refs) != 1 {
			t.Errorf("ownerReferences = %v, want the other", refs)
		}
	})
}
