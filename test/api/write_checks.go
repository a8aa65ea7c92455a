package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func checkWrite(t *testing.T, g Target) {
	t.Helper()
	t.Run("a created object has an identity", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		o := g.post(t, p, configMap("a", nil)).want(t, http.StatusCreated, "").body
		at, err := time.Parse(time.RFC3339, o.text("metadata.creationTimestamp"))
		if err != nil || time.Since(at) > time.Minute || o.text("metadata.uid") == "" || o.rv() == "" || o.text("kind") != "ConfigMap" {
			t.Errorf("object = %v", o)
		}
		if fields, _ := o.at("metadata.managedFields").([]any); len(fields) == 0 {
			t.Error("no managedFields")
		}
		if got := g.get(t, p+"/a").ok(t); got.rv() != o.rv() || got.text("kind") != "ConfigMap" || got.text("metadata.uid") != o.text("metadata.uid") {
			t.Errorf("get = %v, want the created object", got)
		}
	})

	t.Run("generateName makes names", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		a := g.post(t, p, object{"metadata": object{"generateName": "gen-"}}).ok(t).text("metadata.name")
		b := g.post(t, p, object{"metadata": object{"generateName": "gen-"}}).ok(t).text("metadata.name")
		if len(a) != len("gen-")+5 || a == b || !strings.HasPrefix(a, "gen-") {
			t.Errorf("names = %q, %q", a, b)
		}
		long := g.post(t, p, object{"metadata": object{"generateName": strings.Repeat("x", 70)}}).ok(t).text("metadata.name")
		if len(long) != 63 {
			t.Errorf("a long base gives %d characters, want 63", len(long))
		}
	})

	t.Run("identity sent by a client is not taken over", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		in := configMap("a", nil)
		in["metadata"] = object{"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z", "generation": 9}
		o := g.post(t, p, in).ok(t)
		if o.text("metadata.uid") == "mine" || strings.HasPrefix(o.text("metadata.creationTimestamp"), "2001") || o.at("metadata.deletionTimestamp") != nil {
			t.Errorf("metadata = %v", o["metadata"])
		}
	})

	t.Run("dryRun answers and stores nothing", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		if got := g.post(t, p+"?dryRun=All", configMap("a", nil)).want(t, http.StatusCreated, "").body.text("metadata.uid"); got == "" {
			t.Error("no uid in the answer")
		}
		g.get(t, p+"/a").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
		g.post(t, p, configMap("a", nil)).ok(t)
		if got := g.patch(t, mergePatch, p+"/a?dryRun=All", `{"data":{"k":"dry"}}`).ok(t).text("data.k"); got != "dry" {
			t.Errorf("answer has %q", got)
		}
		g.delete(t, p+"/a?dryRun=All", nil).ok(t)
		if got := g.get(t, p+"/a").ok(t).text("data.k"); got != "v" {
			t.Errorf("stored %q, want it unchanged", got)
		}
		g.post(t, p+"?dryRun=Maybe", configMap("b", nil)).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	})

	t.Run("generation counts changes of the spec", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		gen := func(o object) any { return o.at("metadata.generation") }
		if got := gen(g.post(t, p, job("j")).ok(t)); got != 1.0 {
			t.Errorf("generation at first = %v, want 1", got)
		}
		if got := gen(g.patch(t, mergePatch, p+"/j", `{"metadata":{"labels":{"a":"b"}}}`).ok(t)); got != 1.0 {
			t.Errorf("after a label = %v, want 1", got)
		}
		if got := gen(g.patch(t, mergePatch, p+"/j", `{"spec":{"parallelism":3}}`).ok(t)); got != 2.0 {
			t.Errorf("after the spec = %v, want 2", got)
		}
		if got := gen(g.patch(t, mergePatch, p+"/j/status", `{"status":{"active":1}}`).ok(t)); got != 2.0 {
			t.Errorf("after the status = %v, want 2", got)
		}
	})

	t.Run("status and spec are written apart", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		g.post(t, p, job("j")).ok(t)
		o := g.patch(t, mergePatch, p+"/j", `{"spec":{"parallelism":2},"status":{"active":5}}`).ok(t)
		if o.at("status.active") != nil || o.at("spec.parallelism") != 2.0 {
			t.Errorf("the main resource wrote status %v, spec.parallelism %v", o["status"], o.at("spec.parallelism"))
		}
		o = g.patch(t, mergePatch, p+"/j/status", `{"spec":{"parallelism":7},"status":{"active":5}}`).ok(t)
		if o.at("status.active") != 5.0 || o.at("spec.parallelism") != 2.0 {
			t.Errorf("the status resource wrote status %v, spec.parallelism %v", o["status"], o.at("spec.parallelism"))
		}
		o = g.get(t, p+"/j/status").ok(t)
		o["status"] = object{"active": 1}
		if got := g.put(t, p+"/j/status", o).ok(t).at("status.active"); got != 1.0 {
			t.Errorf("active = %v, want 1", got)
		}
	})

	t.Run("a write that changes nothing makes no version and no event", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		o := g.post(t, p, configMap("a", nil)).ok(t)
		s := g.watch(t, p+"?watch=1&fieldSelector=metadata.name%3Da&resourceVersion="+o.rv())
		if got := g.patch(t, mergePatch, p+"/a", `{"data":{"k":"v"}}`).ok(t).rv(); got != o.rv() {
			t.Errorf("patch made version %s of %s", got, o.rv())
		}
		if got := g.put(t, p+"/a", o).ok(t).rv(); got != o.rv() {
			t.Errorf("update made version %s of %s", got, o.rv())
		}
		s.quiet(t)
	})

	t.Run("a large object is stored whole", func(t *testing.T) {
		t.Parallel()
		p := path("jobs", g.namespace(t))
		j := job("big")
		const size = 1_400_000
		big := strings.Repeat("x", size)
		j.at("spec").(object)["template"].(object)["spec"].(object)["containers"] = []object{{"name": "main", "image": "i", "env": []object{{"name": "A", "value": big}}}}
		g.post(t, p, j).want(t, http.StatusCreated, "")
		s := g.watch(t, p+"?watch=1")
		o := s.want(t, "ADDED", "big")
		list := g.get(t, p).ok(t)
		for _, got := range []object{o, items(list)[0]} {
			c, _ := got.at("spec.template.spec.containers").([]any)
			env, _ := c[0].(map[string]any)["env"].([]any)
			if v, _ := env[0].(map[string]any)["value"].(string); len(v) != size {
				t.Errorf("value has %d bytes, want %d", len(v), size)
			}
		}
	})

	t.Run("missing things are 404", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		r := g.get(t, path("pods", ns)+"/none").want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
		if d := r.status(t).Details; d == nil || d.Name != "none" || d.Kind != "pods" {
			t.Errorf("details = %+v, want pods none", d)
		}
		g.put(t, path("pods", ns)+"/none", pod("none")).want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
		g.patch(t, mergePatch, path("pods", ns)+"/none", `{}`).want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
		g.delete(t, path("pods", ns)+"/none", nil).want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
		g.post(t, path("pods", ns+"-none"), pod("p")).want(t, http.StatusNotFound, metav1.StatusReasonNotFound)
		if got := len(items(g.get(t, path("pods", ns+"-none")).ok(t))); got != 0 {
			t.Errorf("a list in a missing namespace has %d items, want an empty list", got)
		}
	})

	t.Run("a lease can be created by an update", func(t *testing.T) {
		t.Parallel()
		p := path("leases", g.namespace(t))
		g.put(t, p+"/l", object{"metadata": object{"name": "l"}, "spec": object{"holderIdentity": "me"}}).want(t, http.StatusCreated, "")
		g.put(t, p+"/l", object{"metadata": object{"name": "l"}, "spec": object{"holderIdentity": "you"}}).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	})
}

func checkConflict(t *testing.T, g Target) {
	t.Helper()
	t.Run("a name is taken once", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		r := g.post(t, p, configMap("a", nil)).want(t, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		if d := r.status(t).Details; d == nil || d.Name != "a" || d.Kind != "configmaps" {
			t.Errorf("details = %+v", d)
		}
	})

	t.Run("an update of an old version is a conflict", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		old := g.post(t, p, configMap("a", nil)).ok(t)
		g.patch(t, mergePatch, p+"/a", `{"data":{"k":"2"}}`).ok(t)
		old["data"] = object{"k": "3"}
		g.put(t, p+"/a", old).want(t, http.StatusConflict, metav1.StatusReasonConflict)
		g.patch(t, mergePatch, p+"/a", object{"metadata": object{"resourceVersion": old.rv()}, "data": object{"k": "3"}}).
			want(t, http.StatusConflict, metav1.StatusReasonConflict)
		if got := g.get(t, p+"/a").ok(t).text("data.k"); got != "2" {
			t.Errorf("data = %q, want 2", got)
		}
	})

	t.Run("an update without a version wins", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		in := configMap("a", nil)
		in["data"] = object{"k": "blind"}
		if got := g.put(t, p+"/a", in).ok(t).text("data.k"); got != "blind" {
			t.Errorf("data = %q", got)
		}
	})

	t.Run("an update for another uid is a conflict", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		in := configMap("a", nil)
		in["metadata"] = object{"name": "a", "uid": "other"}
		g.put(t, p+"/a", in).want(t, http.StatusConflict, metav1.StatusReasonConflict)
		r := g.patch(t, mergePatch, p+"/a", `{"metadata":{"uid":"other"}}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		if r.causes(t)["metadata.uid"] == "" {
			t.Errorf("causes = %v, want metadata.uid", r.causes(t))
		}
	})

	t.Run("of racing updates of one version one wins", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		o := g.post(t, p, configMap("a", nil)).ok(t)
		const racers = 8
		codes := make([]int, racers)
		var wg sync.WaitGroup
		for i := range racers {
			wg.Go(func() {
				in := configMap("a", nil)
				in["metadata"] = object{"name": "a", "resourceVersion": o.rv()}
				in["data"] = object{"k": fmt.Sprint(i)}
				codes[i] = g.put(t, p+"/a", in).code
			})
		}
		wg.Wait()
		won := 0
		for _, c := range codes {
			switch c {
			case http.StatusOK:
				won++
			case http.StatusConflict:
			default:
				t.Errorf("code = %d, want 200 or 409", c)
			}
		}
		if won != 1 {
			t.Errorf("%d updates won, want 1", won)
		}
	})

	t.Run("racing patches without a version all apply", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.post(t, p, configMap("a", nil)).ok(t)
		const racers = 4
		var wg sync.WaitGroup
		for i := range racers {
			wg.Go(func() { g.patch(t, mergePatch, p+"/a", fmt.Sprintf(`{"data":{"k%d":"x"}}`, i)).ok(t) })
		}
		wg.Wait()
		if data, _ := g.get(t, p+"/a").ok(t).at("data").(map[string]any); len(data) != racers+1 {
			t.Errorf("data = %v, want %d keys", data, racers+1)
		}
	})
}
