package api

import (
	"net/http"
	"testing"
)

// owned is a config map owned by o.
func owned(name string, kind string, o object, block bool) object {
	c := configMap(name, nil)
	c["metadata"] = object{"name": name, "ownerReferences": []object{{
		"apiVersion": o.text("apiVersion"), "kind": kind, "name": o.text("metadata.name"), "uid": o.text("metadata.uid"), "blockOwnerDeletion": block,
	}}}
	return c
}

// collectorSees returns when the server's collector, which learns of config maps by
// watching, has seen those created before: it has collected one created after them.
func (g Target) collectorSees(t *testing.T, p string) {
	t.Helper()
	ghost := object{"apiVersion": "v1", "metadata": map[string]any{"name": "ghost", "uid": "3f1c1b32-0000-4000-8000-00000000abcd"}}
	g.post(t, p, owned("canary", "ConfigMap", ghost, false)).ok(t)
	eventually(t, "the canary is collected", func() bool { return g.get(t, p+"/canary").code == http.StatusNotFound })
}

func checkCollect(t *testing.T, g Target) {
	t.Helper()
	t.Run("background deletion collects the dependents", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		p := path("configmaps", ns)
		o := g.post(t, p, configMap("owner", nil)).ok(t)
		g.post(t, p, owned("dep", "ConfigMap", o, false)).ok(t)
		dep := g.get(t, p+"/dep").ok(t)
		g.post(t, p, owned("depdep", "ConfigMap", dep, false)).ok(t)
		g.collectorSees(t, p)
		g.delete(t, p+"/owner", `{"propagationPolicy":"Background"}`).ok(t)
		for _, name := range []string{"dep", "depdep"} {
			eventually(t, name+" is collected", func() bool { return g.get(t, p+"/"+name).code == http.StatusNotFound })
		}
	})

	t.Run("orphaned dependents stay without the owner", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		o := g.post(t, p, configMap("owner", nil)).ok(t)
		g.post(t, p, owned("dep", "ConfigMap", o, false)).ok(t)
		g.collectorSees(t, p)
		g.delete(t, p+"/owner", `{"propagationPolicy":"Orphan"}`).ok(t)
		eventually(t, "the owner is gone", func() bool { return g.get(t, p+"/owner").code == http.StatusNotFound })
		if refs := g.get(t, p+"/dep").ok(t).at("metadata.ownerReferences"); refs != nil {
			t.Errorf("ownerReferences = %v, want none", refs)
		}
	})

	t.Run("a Job deleted without a policy orphans its pods", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		o := g.post(t, path("jobs", ns), job("j")).ok(t)
		p := path("configmaps", ns)
		g.post(t, p, owned("dep", "Job", o, true)).ok(t)
		g.collectorSees(t, p)
		g.delete(t, path("jobs", ns)+"/j", nil).ok(t)
		eventually(t, "the job is gone", func() bool { return g.get(t, path("jobs", ns)+"/j").code == http.StatusNotFound })
		if refs := g.get(t, p+"/dep").ok(t).at("metadata.ownerReferences"); refs != nil {
			t.Errorf("ownerReferences = %v, want none", refs)
		}
	})

	t.Run("foreground deletion waits for dependents that block", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		o := g.post(t, p, configMap("owner", nil)).ok(t)
		g.post(t, p, owned("dep", "ConfigMap", o, true)).ok(t)
		g.patch(t, mergePatch, p+"/dep", `{"metadata":{"finalizers":["x.io/hold"]}}`).ok(t)
		g.collectorSees(t, p)
		marked := g.delete(t, p+"/owner", `{"propagationPolicy":"Foreground"}`).ok(t)
		if f, _ := marked.at("metadata.finalizers").([]any); len(f) != 1 || f[0] != "foregroundDeletion" {
			t.Errorf("finalizers = %v, want foregroundDeletion", f)
		}
		eventually(t, "the dependent is being deleted", func() bool { return g.get(t, p+"/dep").ok(t).text("metadata.deletionTimestamp") != "" })
		g.get(t, p+"/owner").ok(t)
		g.patch(t, mergePatch, p+"/dep", `{"metadata":{"finalizers":null}}`).ok(t)
		eventually(t, "the owner is gone", func() bool { return g.get(t, p+"/owner").code == http.StatusNotFound })
	})

	t.Run("an object whose owner never was is collected", func(t *testing.T) {
		t.Parallel()
		g.collectorSees(t, path("configmaps", g.namespace(t)))
	})

	t.Run("one of two owners is enough", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		a := g.post(t, p, configMap("a", nil)).ok(t)
		b := g.post(t, p, configMap("b", nil)).ok(t)
		in := owned("dep", "ConfigMap", a, false)
		second := owned("dep", "ConfigMap", b, false)["metadata"].(object)["ownerReferences"].([]object)
		in["metadata"].(object)["ownerReferences"] = append(in["metadata"].(object)["ownerReferences"].([]object), second...)
		g.post(t, p, in).ok(t)
		g.collectorSees(t, p)
		g.delete(t, p+"/a", `{"propagationPolicy":"Background"}`).ok(t)
		eventually(t, "the gone owner is forgotten", func() bool {
			refs, _ := g.get(t, p+"/dep").ok(t).at("metadata.ownerReferences").([]any)
			return len(refs) == 1
		})
		g.delete(t, p+"/b", `{"propagationPolicy":"Background"}`).ok(t)
		eventually(t, "it is collected", func() bool { return g.get(t, p+"/dep").code == http.StatusNotFound })
	})
}
