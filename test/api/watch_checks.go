package api

import (
	"net/http"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func checkWatch(t *testing.T, g Target) {
	t.Helper()
	t.Run("a watch from a list's version shows what comes after", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		rv := g.get(t, p+mine).ok(t).rv()
		g.patch(t, mergePatch, p+"/cm-00", `{"data":{"k":"1"}}`).ok(t)
		s := g.watch(t, p+mine+"&watch=true&resourceVersion="+rv)
		o := s.want(t, "MODIFIED", "cm-00")
		if o.text("kind") != "ConfigMap" || o.text("apiVersion") != "v1" || o.text("data.k") != "1" {
			t.Errorf("object = %v, want it whole with kind and apiVersion", o)
		}
		g.post(t, p, configMap("new", object{"suite": "yes"})).ok(t)
		s.want(t, "ADDED", "new")
		before := g.get(t, p+"/new").ok(t).rv()
		g.delete(t, p+"/new", nil).ok(t)
		if o := s.want(t, "DELETED", "new"); o.rv() == before || o.text("data.k") != "v" {
			t.Errorf("the deleted object is %v, want its last state at the deletion's version", o)
		}
	})

	t.Run("a watch without a version starts with the state", func(t *testing.T) {
		t.Parallel()
		for _, query := range []string{"", "&resourceVersion=0"} {
			p := g.seed(t, 2)
			s := g.watch(t, p+mine+"&watch=1"+query)
			got := []string{s.want(t, "ADDED", "cm-00").text("metadata.name"), s.want(t, "ADDED", "cm-01").text("metadata.name")}
			if !slices.Equal(got, []string{"cm-00", "cm-01"}) {
				t.Errorf("state = %v", got)
			}
			g.delete(t, p+"/cm-00", nil).ok(t)
			s.want(t, "DELETED", "cm-00")
		}
	})

	t.Run("an object that leaves the selection is deleted, one that enters is added", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		rv := g.get(t, p).ok(t).rv()
		s := g.watch(t, p+"?watch=1&labelSelector=tier%3Dgold&resourceVersion="+rv)
		g.patch(t, mergePatch, p+"/cm-00", `{"metadata":{"labels":{"tier":"gold"}}}`).ok(t)
		s.want(t, "ADDED", "cm-00")
		g.patch(t, mergePatch, p+"/cm-00", `{"data":{"k":"2"}}`).ok(t)
		s.want(t, "MODIFIED", "cm-00")
		after := g.patch(t, mergePatch, p+"/cm-00", `{"metadata":{"labels":{"tier":"lead"}},"data":{"k":"3"}}`).ok(t)
		o := s.want(t, "DELETED", "cm-00")
		if o.rv() != after.rv() || o.text("metadata.labels.tier") != "gold" || o.text("data.k") != "2" {
			t.Errorf("object = %v, want its last selected state at version %s", o, after.rv())
		}
		g.delete(t, p+"/cm-00", nil).ok(t)
		s.quiet(t)
	})

	t.Run("a field selector watches one object", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 2)
		s := g.watch(t, p+"?watch=1&fieldSelector=metadata.name%3Dcm-01")
		s.want(t, "ADDED", "cm-01")
		g.patch(t, mergePatch, p+"/cm-00", `{"data":{"k":"x"}}`).ok(t)
		g.patch(t, mergePatch, p+"/cm-01", `{"data":{"k":"y"}}`).ok(t)
		s.want(t, "MODIFIED", "cm-01")
		s.quiet(t)
	})

	t.Run("streaming lists end with a marked bookmark and go on", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 2)
		s := g.watch(t, p+mine+"&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		s.want(t, "ADDED", "cm-00")
		s.want(t, "ADDED", "cm-01")
		for {
			e, ok := s.any(t)
			if !ok {
				t.Fatal("the watch ended before its mark")
			}
			if marks, _ := e.Object.at("metadata.annotations").(map[string]any); e.Type == "BOOKMARK" && marks["k8s.io/initial-events-end"] == "true" {
				if e.Object.text("kind") != "ConfigMap" || e.Object.rv() == "" {
					t.Errorf("bookmark = %v, want kind and version", e.Object)
				}
				break
			} else if e.Type != "BOOKMARK" {
				t.Fatalf("event %s %v before the mark", e.Type, e.Object)
			}
		}
		g.delete(t, p+"/cm-01", nil).ok(t)
		s.want(t, "DELETED", "cm-01")
	})

	t.Run("a watch ends cleanly after its timeout", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		s := g.watch(t, p+mine+"&watch=1&timeoutSeconds=2&allowWatchBookmarks=true&resourceVersion=0")
		last := ""
		for _, e := range s.drain(t) {
			if e.Type == "ERROR" {
				t.Errorf("ERROR %v, want a clean end", e.Object)
			}
			last = e.Type
		}
		if s.code != http.StatusOK || last == "" {
			t.Errorf("code %d, last event %q", s.code, last)
		}
	})

	t.Run("bookmarks carry a version and no content", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		rv := g.get(t, p+mine).ok(t).rv()
		s := g.watch(t, p+mine+"&watch=1&allowWatchBookmarks=true&timeoutSeconds=5&resourceVersion="+rv)
		seen := 0
		for _, e := range s.drain(t) {
			if e.Type != "BOOKMARK" {
				t.Errorf("event %s, want only bookmarks", e.Type)
				continue
			}
			seen++
			if e.Object.rv() == "" || e.Object.text("metadata.name") != "" || e.Object.text("kind") != "ConfigMap" {
				t.Errorf("bookmark = %v", e.Object)
			}
		}
		if seen == 0 {
			t.Error("no bookmark before the timeout")
		}
	})

	t.Run("a watch may wait for the future", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		s := g.watch(t, p+"?watch=1&timeoutSeconds=1&resourceVersion=999999999")
		if got := s.drain(t); s.code != http.StatusOK || len(got) != 0 {
			t.Errorf("code %d, events %v, want an empty watch", s.code, got)
		}
	})

	t.Run("a streaming list of the future fails in the stream", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		s := g.watch(t, p+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=999999999")
		e := s.next(t)
		if e.Type != "ERROR" || e.Object.text("reason") != string(metav1.StatusReasonTimeout) || e.Object.at("code") != 504.0 {
			t.Errorf("event = %v, want the error that the version is too large", e)
		}
	})

	t.Run("the parameters of a watch are checked", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		for query, field := range map[string]string{
			"sendInitialEvents=true":                                              "resourceVersionMatch",
			"resourceVersionMatch=NotOlderThan&resourceVersion=1":                 "resourceVersionMatch",
			"sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1": "resourceVersionMatch",
		} {
			r := g.get(t, p+"?watch=1&timeoutSeconds=1&"+query).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			if r.causes(t)[field] == "" {
				t.Errorf("?%s blames %v, want %s", query, r.causes(t), field)
			}
		}
	})

	t.Run("events of every namespace come in the order of their versions", func(t *testing.T) {
		t.Parallel()
		a, b := g.namespace(t), g.namespace(t)
		rv := g.get(t, path("leases", a)).ok(t).rv()
		mark := object{"mark": a}
		s := g.watch(t, "/apis/coordination.k8s.io/v1/leases?watch=1&labelSelector=mark%3D"+a+"&resourceVersion="+rv)
		for _, ns := range []string{a, b, a, b} {
			g.post(t, path("leases", ns), object{"metadata": object{"generateName": "l-", "labels": mark}}).want(t, http.StatusCreated, "")
		}
		for _, ns := range []string{a, b, a, b} {
			if e := s.next(t); e.Type != "ADDED" || e.Object.text("metadata.namespace") != ns {
				t.Errorf("event = %s in %s, want ADDED in %s", e.Type, e.Object.text("metadata.namespace"), ns)
			}
		}
	})
}
