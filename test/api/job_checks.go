package api

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Job's conditions, in the order in which the API lets them be set.
func condition(kind string) object {
	return object{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Test"}
}

func checkJob(t *testing.T, g Target) {
	t.Helper()
	t.Run("defaults and a generated selector are filled in", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		o := g.post(t, p, job("j")).ok(t)
		for at, want := range map[string]any{
			"spec.parallelism": 1.0, "spec.completions": 1.0, "spec.backoffLimit": 6.0, "spec.completionMode": "NonIndexed",
			"spec.suspend": false, "spec.podReplacementPolicy": "TerminatingOrFailed", "spec.manualSelector": false,
			"spec.template.spec.terminationGracePeriodSeconds": 30.0, "spec.template.spec.dnsPolicy": "ClusterFirst",
		} {
			if got := o.at(at); got != want {
				t.Errorf("%s = %v, want %v", at, got, want)
			}
		}
		uid := o.text("metadata.uid")
		for _, at := range []string{"metadata", "spec.template.metadata"} {
			labels, _ := o.at(at + ".labels").(map[string]any)
			for key, want := range map[string]string{"batch.kubernetes.io/controller-uid": uid, "controller-uid": uid, "batch.kubernetes.io/job-name": "j", "job-name": "j"} {
				if labels[key] != want {
					t.Errorf("%s.labels[%s] = %v, want %s", at, key, labels[key], want)
				}
			}
		}
		if sel, _ := o.at("spec.selector.matchLabels").(map[string]any); len(sel) != 1 || sel["batch.kubernetes.io/controller-uid"] != uid {
			t.Errorf("selector = %v", sel)
		}
	})

	t.Run("a work queue Job has no completions, one with a failure policy replaces only failed pods", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		j := job("q")
		j["spec"].(object)["parallelism"] = 2
		if got := g.post(t, p, j).ok(t).at("spec.completions"); got != nil {
			t.Errorf("completions = %v, want none", got)
		}
		j = job("f")
		j["spec"].(object)["podFailurePolicy"] = object{"rules": []object{{"action": "Ignore", "onPodConditions": []object{{"type": "DisruptionTarget", "status": "True"}}}}}
		if got := g.post(t, p, j).ok(t).at("spec.podReplacementPolicy"); got != "Failed" {
			t.Errorf("podReplacementPolicy = %v, want Failed", got)
		}
	})

	t.Run("bad Jobs are invalid and say where", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		for field, change := range map[string]func(spec object){
			"spec.parallelism":                 func(s object) { s["parallelism"] = -1 },
			"spec.completions":                 func(s object) { s["completionMode"], s["parallelism"] = "Indexed", 1 },
			"spec.backoffLimit":                func(s object) { s["backoffLimit"] = -3 },
			"spec.completionMode":              func(s object) { s["completionMode"] = "Sometimes" },
			"spec.backoffLimitPerIndex":        func(s object) { s["backoffLimitPerIndex"] = 1 },
			"spec.podReplacementPolicy":        func(s object) { s["podReplacementPolicy"] = "Never" },
			"spec.template.spec.restartPolicy": func(s object) { s["template"].(object)["spec"].(object)["restartPolicy"] = "Always" },
			"spec.template.spec.containers":    func(s object) { s["template"].(object)["spec"].(object)["containers"] = []object{} },
			"spec.template.spec.containers[0].image": func(s object) {
				s["template"].(object)["spec"].(object)["containers"] = []object{{"name": "a"}}
			},
			"spec.template.metadata.labels[job-name]": func(s object) {
				s["template"].(object)["metadata"] = object{"labels": object{"job-name": "another"}}
			},
			"spec.activeDeadlineSeconds": func(s object) { s["activeDeadlineSeconds"] = -1 },
		} {
			j := job("bad")
			change(j["spec"].(object))
			r := g.post(t, p, j).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			if r.causes(t)[field] == "" {
				t.Errorf("causes = %v, want %s", r.causes(t), field)
			}
		}
	})

	t.Run("what a controller relies on cannot change", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		g.post(t, p, job("j")).ok(t)
		for field, patch := range map[string]string{
			"spec.completions":    `{"spec":{"completions":5}}`,
			"spec.selector":       `{"spec":{"selector":{"matchLabels":{"a":"b"}}}}`,
			"spec.template":       `{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":5}}}}`,
			"spec.completionMode": `{"spec":{"completionMode":"Indexed"}}`,
		} {
			r := g.patch(t, mergePatch, p+"/j", patch).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			if r.causes(t)[field] == "" {
				t.Errorf("%s: causes = %v, want %s", patch, r.causes(t), field)
			}
		}
		g.patch(t, mergePatch, p+"/j", `{"spec":{"parallelism":0,"suspend":true,"backoffLimit":1,"activeDeadlineSeconds":9}}`).ok(t)
	})

	t.Run("an Indexed Job grows with its parallelism", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		j := job("j")
		j["spec"].(object)["completionMode"], j["spec"].(object)["completions"], j["spec"].(object)["parallelism"] = "Indexed", 2, 2
		g.post(t, p, j).ok(t)
		g.patch(t, mergePatch, p+"/j", `{"spec":{"completions":3}}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		g.patch(t, mergePatch, p+"/j", `{"spec":{"completions":3,"parallelism":3}}`).ok(t)
	})

	status := func(t *testing.T, p string, patch any) reply {
		t.Helper()
		return g.patch(t, mergePatch, p+"/j/status", patch)
	}
	refused := func(t *testing.T, p, field string, s object) {
		t.Helper()
		r := status(t, p, object{"status": s}).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		if r.causes(t)[field] == "" {
			t.Errorf("causes = %v, want %s", r.causes(t), field)
		}
	}

	t.Run("counters never fall and ready never exceeds active", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		g.post(t, p, job("j")).ok(t)
		status(t, p, object{"status": object{"active": 2, "ready": 1, "failed": 2, "succeeded": 1, "startTime": "2026-01-01T00:00:00Z"}}).ok(t)
		refused(t, p, "status.failed", object{"failed": 1})
		refused(t, p, "status.succeeded", object{"succeeded": 0})
		refused(t, p, "status.ready", object{"ready": 3})
		refused(t, p, "status.active", object{"active": -1})
		refused(t, p, "status.startTime", object{"startTime": "2026-01-02T00:00:00Z"})
		refused(t, p, "status.uncountedTerminatedPods.failed[0]", object{"uncountedTerminatedPods": object{"succeeded": []string{"u"}, "failed": []string{"u"}}})
	})

	t.Run("Complete needs SuccessCriteriaMet, a time and nothing left", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		g.post(t, p, job("j")).ok(t)
		start, end := "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
		met, complete := condition("SuccessCriteriaMet"), condition("Complete")
		status(t, p, object{"status": object{"active": 1, "terminating": 1, "startTime": start, "uncountedTerminatedPods": object{"succeeded": []string{"u"}}}}).ok(t)
		refused(t, p, "status.conditions", object{"conditions": []object{complete}, "completionTime": end, "active": 0, "terminating": 0, "uncountedTerminatedPods": nil})
		status(t, p, object{"status": object{"conditions": []object{met}}}).ok(t)
		both := []object{met, complete}
		refused(t, p, "status.active", object{"conditions": both, "completionTime": end, "terminating": 0, "uncountedTerminatedPods": nil})
		refused(t, p, "status.terminating", object{"conditions": both, "completionTime": end, "active": 0, "uncountedTerminatedPods": nil})
		refused(t, p, "status.uncountedTerminatedPods", object{"conditions": both, "completionTime": end, "active": 0, "terminating": 0})
		refused(t, p, "status.completionTime", object{"conditions": both, "active": 0, "terminating": 0, "uncountedTerminatedPods": nil})
		refused(t, p, "status.completionTime", object{"conditions": both, "completionTime": "2025-01-01T00:00:00Z", "active": 0, "terminating": 0, "uncountedTerminatedPods": nil})
		refused(t, p, "status.conditions", object{"conditions": append(both, condition("FailureTarget")), "completionTime": end, "active": 0, "terminating": 0, "uncountedTerminatedPods": nil})
		status(t, p, object{"status": object{"conditions": both, "completionTime": end, "active": 0, "terminating": 0, "uncountedTerminatedPods": nil}}).ok(t)
		refused(t, p, "status.conditions", object{"conditions": []object{met}, "completionTime": nil})
		refused(t, p, "status.completionTime", object{"completionTime": "2026-01-01T00:02:00Z"})
	})

	t.Run("Failed needs FailureTarget", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		g.post(t, p, job("j")).ok(t)
		failed, target := condition("Failed"), condition("FailureTarget")
		refused(t, p, "status.conditions", object{"conditions": []object{failed}, "startTime": "2026-01-01T00:00:00Z"})
		refused(t, p, "status.startTime", object{"conditions": []object{target, failed}})
		status(t, p, object{"status": object{"conditions": []object{target}, "startTime": "2026-01-01T00:00:00Z"}}).ok(t)
		refused(t, p, "status.conditions", object{"conditions": []object{}})
		refused(t, p, "status.conditions", object{"conditions": []object{target, condition("SuccessCriteriaMet")}})
		status(t, p, object{"status": object{"conditions": []object{target, failed}}}).ok(t)
		refused(t, p, "status.conditions", object{"conditions": []object{target}})
	})
}

func checkPod(t *testing.T, g Target) {
	t.Helper()
	t.Run("a pod is filled in at its creation", func(t *testing.T) {
		t.Parallel()
		o := g.post(t, path("pods", g.namespace(t)), pod("p")).ok(t)
		for at, want := range map[string]any{
			"spec.restartPolicy": "Always", "spec.dnsPolicy": "ClusterFirst", "spec.terminationGracePeriodSeconds": 30.0,
			"spec.serviceAccountName": "default", "spec.priority": 0.0, "spec.enableServiceLinks": true,
			"status.phase": "Pending", "status.qosClass": "BestEffort", "metadata.generation": 1.0,
		} {
			if got := o.at(at); got != want {
				t.Errorf("%s = %v, want %v", at, got, want)
			}
		}
		if tolerations, _ := o.at("spec.tolerations").([]any); len(tolerations) != 2 {
			t.Errorf("tolerations = %v, want not-ready and unreachable", tolerations)
		}
	})

	t.Run("bad pods are invalid and say where", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		for field, change := range map[string]func(o object){
			"spec.containers":          func(o object) { o["spec"].(object)["containers"] = nil },
			"spec.containers[0].image": func(o object) { o["spec"].(object)["containers"] = []object{{"name": "a"}} },
			"spec.containers[0].name":  func(o object) { o["spec"].(object)["containers"] = []object{{"name": "A b", "image": "i"}} },
			"spec.containers[1].name": func(o object) {
				o["spec"].(object)["containers"] = []object{{"name": "a", "image": "i"}, {"name": "a", "image": "i"}}
			},
			"spec.restartPolicy": func(o object) { o["spec"].(object)["restartPolicy"] = "Sometimes" },
			"metadata.name":      func(o object) { o["metadata"].(object)["name"] = "Not_A_Name" },
			"metadata.labels":    func(o object) { o["metadata"].(object)["labels"] = object{"a b": "c"} },
			"metadata.ownerReferences.uid": func(o object) {
				o["metadata"].(object)["ownerReferences"] = []object{{"apiVersion": "v1", "kind": "Pod", "name": "x"}}
			},
		} {
			in := pod("bad")
			change(in)
			r := g.post(t, p, in).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			if r.causes(t)[field] == "" {
				t.Errorf("causes = %v, want %s", r.causes(t), field)
			}
		}
		in := pod("bad")
		in["metadata"] = object{}
		g.post(t, p, in).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	})

	t.Run("a pod's spec is fixed but for its image and new tolerations", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		g.post(t, p, pod("p")).ok(t)
		for _, patch := range []string{
			`{"spec":{"restartPolicy":"Never"}}`, `{"spec":{"nodeName":"n"}}`,
			`{"spec":{"containers":[{"name":"other","image":"i"}]}}`, `{"spec":{"serviceAccountName":"other"}}`,
		} {
			g.patch(t, mergePatch, p+"/p", patch).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		}
		g.patch(t, strategic, p+"/p", `{"spec":{"containers":[{"name":"main","image":"busybox:2"}]}}`).ok(t)
	})

	t.Run("a binding gives a pod its node once", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		g.post(t, p, pod("p")).ok(t)
		binding := object{"apiVersion": "v1", "kind": "Binding", "metadata": object{"name": "p"}, "target": object{"kind": "Node", "name": "nobody-runs-this-node"}}
		if got := g.post(t, p+"/p/binding", binding).want(t, http.StatusCreated, "").body.text("status"); got != "Success" {
			t.Errorf("status = %q, want Success", got)
		}
		o := g.get(t, p+"/p").ok(t)
		conditions, _ := o.at("status.conditions").([]any)
		if o.text("spec.nodeName") != "nobody-runs-this-node" || len(conditions) != 1 {
			t.Errorf("nodeName %q, conditions %v", o.text("spec.nodeName"), conditions)
		}
		g.post(t, p+"/p/binding", binding).want(t, http.StatusConflict, metav1.StatusReasonConflict)
		g.delete(t, p+"/p?gracePeriodSeconds=0", nil).ok(t)
	})

	t.Run("an eviction deletes", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		g.post(t, p, pod("p")).ok(t)
		g.post(t, p+"/p/eviction", object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": object{"name": "p"}}).want(t, http.StatusCreated, "")
		g.get(t, p+"/p").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
	})
}
