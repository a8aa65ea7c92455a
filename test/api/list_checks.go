package api

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// seed creates n config maps cm-00... and returns their collection.
func (g Target) seed(t *testing.T, n int) string {
	t.Helper()
	p := path("configmaps", g.namespace(t))
	// The real cluster puts one of its own into every namespace.
	for i := range n {
		g.post(t, p, configMap(fmt.Sprintf("cm-%02d", i), object{"suite": "yes", "odd": strconv.FormatBool(i%2 == 1)})).want(t, http.StatusCreated, "")
	}
	return p
}

const mine = "?labelSelector=suite%3Dyes"

func checkList(t *testing.T, g Target) {
	t.Helper()
	t.Run("a list has kind, version and bare items in the order of their keys", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 3)
		list := g.get(t, p+mine).ok(t)
		if list.text("kind") != "ConfigMapList" || list.text("apiVersion") != "v1" || list.rv() == "" {
			t.Errorf("list = %v", list)
		}
		if got, want := names(list), []string{"cm-00", "cm-01", "cm-02"}; !slices.Equal(got, want) {
			t.Errorf("names = %v, want %v", got, want)
		}
		for _, o := range items(list) {
			if o["kind"] != nil || o["apiVersion"] != nil {
				t.Errorf("item %v has kind or apiVersion", o)
			}
		}
	})

	t.Run("an empty list has an empty array", func(t *testing.T) {
		t.Parallel()
		list := g.get(t, path("jobs", g.namespace(t))).ok(t)
		if got, ok := list["items"].([]any); !ok || len(got) != 0 {
			t.Errorf("items = %v, want []", list["items"])
		}
	})

	t.Run("pages show the state of the first page", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 5)
		first := g.get(t, p+mine+"&limit=2").ok(t)
		g.delete(t, p+"/cm-03", nil).ok(t)
		g.post(t, p, configMap("cm-99", object{"suite": "yes"})).ok(t)
		g.patch(t, mergePatch, p+"/cm-04", `{"data":{"k":"new"}}`).ok(t)
		all, rv, next := items(first), first.rv(), first.text("metadata.continue")
		for next != "" {
			list := g.get(t, p+mine+"&limit=2&continue="+next).ok(t)
			if list.rv() != rv {
				t.Errorf("resourceVersion of a page = %s, want that of the first, %s", list.rv(), rv)
			}
			all, next = append(all, items(list)...), list.text("metadata.continue")
		}
		if len(all) != 5 || all[3].text("metadata.name") != "cm-03" || all[4].text("data.k") != "v" {
			t.Errorf("pages hold %v, want the five objects as they were", all)
		}
	})

	t.Run("only lists without selectors count what remains", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		p := path("leases", ns)
		for i := range 3 {
			g.post(t, p, object{"metadata": object{"name": fmt.Sprintf("l-%d", i), "labels": object{"suite": "yes"}}}).want(t, http.StatusCreated, "")
		}
		if got := g.get(t, p+"?limit=1").ok(t).at("metadata.remainingItemCount"); got != 2.0 {
			t.Errorf("remainingItemCount = %v, want 2", got)
		}
		if got := g.get(t, p+mine+"&limit=1").ok(t).at("metadata.remainingItemCount"); got != nil {
			t.Errorf("remainingItemCount with a selector = %v, want none", got)
		}
		if got := g.get(t, p+"?limit=3").ok(t).text("metadata.continue"); got != "" {
			t.Errorf("continue = %q on the last page, want none", got)
		}
	})

	t.Run("resource versions choose how fresh a list is", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		old := g.get(t, p+mine).ok(t).rv()
		g.post(t, p, configMap("later", object{"suite": "yes"})).ok(t)
		for query, want := range map[string]int{
			"": 2,
			"&resourceVersion=" + old + "&resourceVersionMatch=Exact":        1,
			"&resourceVersion=" + old + "&limit=10":                          1,
			"&resourceVersion=" + old + "&resourceVersionMatch=NotOlderThan": 2,
		} {
			list := g.get(t, p+mine+query).ok(t)
			// Not older than may be exactly as old.
			if got := len(items(list)); got != want && !(want == 2 && query != "" && got == 1) {
				t.Errorf("list%s has %d items, want %d", query, got, want)
			}
			if want == 1 && list.rv() != old {
				t.Errorf("list%s is at %s, want %s", query, list.rv(), old)
			}
		}
		g.get(t, p+mine+"&resourceVersion=0").ok(t)
	})

	t.Run("a version from the future is a timeout that says so", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		for _, query := range []string{"?resourceVersion=999999999", "?resourceVersion=999999999&resourceVersionMatch=Exact"} {
			r := g.get(t, p+query).want(t, http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
			d := r.status(t).Details
			if d == nil || d.RetryAfterSeconds != 1 || len(d.Causes) != 1 || d.Causes[0].Type != metav1.CauseTypeResourceVersionTooLarge {
				t.Errorf("details = %+v, want the cause ResourceVersionTooLarge and a second's wait", d)
			}
		}
	})

	t.Run("selectors select", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 4)
		for query, want := range map[string][]string{
			"labelSelector=odd%3Dtrue":                                       {"cm-01", "cm-03"},
			"labelSelector=suite,odd+notin+(true)":                           {"cm-00", "cm-02"},
			"labelSelector=!odd,suite":                                       nil,
			"fieldSelector=metadata.name%3Dcm-02":                            {"cm-02"},
			"labelSelector=suite%3Dyes&fieldSelector=metadata.name!%3Dcm-02": {"cm-00", "cm-01", "cm-03"},
		} {
			if got := names(g.get(t, p+"?"+query).ok(t)); !slices.Equal(got, want) {
				t.Errorf("?%s = %v, want %v", query, got, want)
			}
		}
	})

	t.Run("pods are selected by node and phase", func(t *testing.T) {
		t.Parallel()
		p := path("pods", g.namespace(t))
		g.post(t, p, pod("free")).ok(t)
		for query, want := range map[string]int{"spec.nodeName%3D": 1, "spec.nodeName%3Delsewhere": 0, "status.phase%3DPending": 1, "status.phase!%3DPending": 0} {
			if got := len(items(g.get(t, p+"?fieldSelector="+query).ok(t))); got != want {
				t.Errorf("fieldSelector %s selects %d pods, want %d", query, got, want)
			}
		}
	})

	t.Run("a list without a namespace has them all", func(t *testing.T) {
		t.Parallel()
		a, b := g.namespace(t), g.namespace(t)
		mark := "mark-" + a
		for _, ns := range []string{a, b} {
			g.post(t, path("configmaps", ns), configMap("x", object{"mark": mark})).ok(t)
		}
		if got := len(items(g.get(t, "/api/v1/configmaps?labelSelector=mark%3D"+mark).ok(t))); got != 2 {
			t.Errorf("%d objects, want 2", got)
		}
	})
}
