package api

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

func checkCRD(t *testing.T, g Target) {
	t.Helper()
	group := "suite-" + rand.String(6) + ".example.com"
	crd := object{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "widgets." + group}, "spec": object{
		"group": group, "scope": "Namespaced", "names": object{"plural": "widgets", "kind": "Widget"},
		"versions": []object{{
			"name": "v1", "served": true, "storage": true, "subresources": object{"status": object{}},
			"schema": object{"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		}},
	}}
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	g.get(t, "/apis/"+group+"/v1/widgets").want404(t)
	o := g.post(t, crds, crd).want(t, http.StatusCreated, "").body
	if o.text("spec.names.singular") != "widget" || o.text("spec.names.listKind") != "WidgetList" {
		t.Errorf("names = %v, want singular and listKind filled in", o.at("spec.names"))
	}
	eventually(t, "the resource is served", func() bool { return g.get(t, "/apis/"+group+"/v1/widgets").code == http.StatusOK })
	ns := g.namespace(t)
	p := "/apis/" + group + "/v1/namespaces/" + ns + "/widgets"
	widget := func(name string) object {
		return object{"apiVersion": group + "/v1", "kind": "Widget", "metadata": object{"name": name}, "spec": object{"size": 1}, "status": object{"early": true}}
	}

	created := g.post(t, p, widget("w")).want(t, http.StatusCreated, "").body
	if created.at("status") != nil || created.at("metadata.generation") != 1.0 {
		t.Errorf("object = %v, want no status and generation 1", created)
	}
	if list := g.get(t, p).ok(t); list.text("kind") != "WidgetList" || len(items(list)) != 1 || items(list)[0]["kind"] != "Widget" {
		t.Errorf("list = %v, want a WidgetList whose items carry their kind", list)
	}
	expired := g.watch(t, p+"?watch=1&resourceVersion=1")
	if e := expired.next(t); expired.code != http.StatusOK || e.Type != "ERROR" || e.Object.text("reason") != string(metav1.StatusReasonExpired) || e.Object.at("code") != 410.0 {
		t.Errorf("a watch from before the resource = %v, want the ERROR event Expired", e)
	}
	s := g.watch(t, p+"?watch=1&resourceVersion="+created.rv())
	changed := g.patch(t, mergePatch, p+"/w", `{"spec":{"size":2},"status":{"x":1}}`).ok(t)
	if changed.at("metadata.generation") != 2.0 || changed.at("status") != nil {
		t.Errorf("object = %v, want generation 2 and no status", changed)
	}
	s.want(t, "MODIFIED", "w")
	with := g.patch(t, mergePatch, p+"/w/status", `{"metadata":{"labels":{"a":"b"}},"spec":{"size":9},"status":{"x":1}}`).ok(t)
	if with.at("metadata.generation") != 2.0 || with.at("status.x") != 1.0 || with.at("spec.size") != 2.0 || with.at("metadata.labels") != nil {
		t.Errorf("object = %v, want only the status written", with)
	}
	s.want(t, "MODIFIED", "w")
	g.patch(t, strategic, p+"/w", `{}`).want(t, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType)
	g.put(t, p+"/w", widget("w")).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	g.post(t, p, widget("w")).want(t, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	g.post(t, p, widget("Bad_Name")).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	if got := g.delete(t, p+"/w", nil).ok(t); got.text("kind") != "Status" || got.text("status") != "Success" {
		t.Errorf("delete answers %v, want a Status", got)
	}
	s.want(t, "DELETED", "w")

	g.post(t, p, widget("left")).ok(t)
	g.delete(t, crds+"/widgets."+group, nil).ok(t)
	eventually(t, "the definition is gone", func() bool { return g.get(t, crds+"/widgets."+group).code == http.StatusNotFound })
	eventually(t, "the resource is gone", func() bool { return g.get(t, "/apis/"+group+"/v1/widgets").code == http.StatusNotFound })
}

// want404 accepts any form of not found: a group nobody serves is answered in plain text.
func (r reply) want404(t *testing.T) {
	t.Helper()
	if r.code != http.StatusNotFound {
		t.Fatalf("code = %d, want 404: %.300s", r.code, r.raw)
	}
}
