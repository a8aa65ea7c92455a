package api

import (
	"net/http"
	"net/url"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkExpiry runs alone: forgetting history disturbs every other check.
func checkExpiry(t *testing.T, g Target) {
	t.Helper()
	if g.Compact == nil {
		t.Skip("this target cannot be made to forget its history")
	}

	t.Run("an expired page token offers one that goes on from the key", func(t *testing.T) {
		p := g.seed(t, 4)
		first := g.get(t, p+mine+"&limit=2").ok(t)
		g.post(t, p, configMap("cm-02a", object{"suite": "yes"})).ok(t)
		g.Compact()
		var r reply
		eventually(t, "the token expires", func() bool {
			r = g.get(t, p+mine+"&limit=2&continue="+first.text("metadata.continue"))
			return r.code == http.StatusGone
		})
		s := r.want(t, http.StatusGone, metav1.StatusReasonExpired).status(t)
		if s.Continue == "" {
			t.Fatal("no token to go on with")
		}
		list := g.get(t, p+mine+"&limit=9&continue="+url.QueryEscape(s.Continue)).ok(t)
		if got, want := names(list), []string{"cm-02", "cm-02a", "cm-03"}; !slices.Equal(got, want) {
			t.Errorf("the rest = %v, want %v", got, want)
		}
	})

	t.Run("an exact version that is forgotten is expired", func(t *testing.T) {
		p := g.seed(t, 1)
		old := g.get(t, p+mine).ok(t).rv()
		g.post(t, p, configMap("more", object{"suite": "yes"})).ok(t)
		g.Compact()
		eventually(t, "the version expires", func() bool {
			r := g.get(t, p+mine+"&resourceVersionMatch=Exact&resourceVersion="+old)
			return r.code == http.StatusGone && r.status(t).Reason == metav1.StatusReasonExpired
		})
	})

	t.Run("a watch from a forgotten version is expired", func(t *testing.T) {
		if g.CachesWatches {
			t.Skip("this target serves watches from a cache that compaction does not reach; the crd checks meet an expired watch")
		}
		p := g.seed(t, 1)
		rv := g.get(t, p).ok(t).rv()
		g.patch(t, mergePatch, p+"/cm-00", `{"data":{"k":"1"}}`).ok(t)
		g.Compact()
		s := g.watch(t, p+"?watch=1&resourceVersion="+rv)
		e := s.next(t)
		if s.code != http.StatusOK || e.Type != "ERROR" || e.Object.text("reason") != string(metav1.StatusReasonExpired) || e.Object.at("code") != 410.0 {
			t.Errorf("event = %v with code %d, want an ERROR event Expired", e, s.code)
		}
	})
}
