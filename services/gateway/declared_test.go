package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/services/gateway"
)

func selecting(c *gateway.Config) { c.IndexSelectors = true }

func TestFieldsOfDeclaredIndexesAreSelectedByWhereThatIsWanted(t *testing.T) {
	t.Parallel()
	selectByIndexes(t, onDevCluster(t, selecting))
}

func TestRealFieldsOfDeclaredIndexesAreSelectedByWhereThatIsWanted(t *testing.T) {
	t.Parallel()
	selectByIndexes(t, onRealServer(t, selecting))
}

func selectByIndexes(t *testing.T, r *rig) {
	t.Helper()
	ns := fmt.Sprintf("declared-%d", time.Now().UnixNano()%1e9)
	maps := "/api/v1/namespaces/" + ns + "/configmaps"
	resp := r.ask(r.direct, http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+ns+`"}}`, "Content-Type", "application/json")
	_ = resp.Body.Close()
	made := func(name, team string) {
		resp := r.ask(r.direct, http.MethodPost, maps, `{"metadata":{"name":"`+name+`"},"data":{"team":"`+team+`"}}`, "Content-Type", "application/json")
		_ = resp.Body.Close()
	}
	made("a", "x")
	made("b", "y")
	made("c", "x")
	for _, d := range []struct {
		collection string
		indexer    client.Indexer
	}{
		{"dev/configmaps.v1", client.ByField("team", "data.team")},
		{"dev/configmaps.v1", client.ByCEL("other", "object.data.other")},
		{"dev/pods.v1", client.ByField("network", "spec.hostNetwork")},
	} {
		for done := false; !done; time.Sleep(20 * time.Millisecond) { // the collection may be on its way
			_, err := r.index.AddIndexers(t.Context(), d.collection, 3*time.Second, d.indexer)
			if done = err == nil; !done && t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
	}
	r.mirrored(maps+"/a", maps+"/b", maps+"/c", "/api/v1/pods")
	list := func(query string) (names []string, version, next string) {
		t.Helper()
		by, code, body := r.read(maps + "?" + query)
		var l struct {
			Metadata struct{ ResourceVersion, Continue string }
			Items    []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(body), &l); err != nil || by != "index" || code != http.StatusOK {
			t.Fatalf("%s: by %q %d %s %v", query, by, code, body, err)
		}
		for _, o := range l.Items {
			names = append(names, o.Metadata.Name)
		}
		return names, l.Metadata.ResourceVersion, l.Metadata.Continue
	}
	names, version, _ := list("fieldSelector=data.team=x")
	if !slices.Equal(names, []string{"a", "c"}) {
		t.Errorf("of team x: %q", names)
	}
	if names, _, _ := list("fieldSelector=data.team!=x,metadata.name!=kube-root-ca.crt&resourceVersion=0"); !slices.Equal(names, []string{"b"}) {
		t.Errorf("not of team x: %q", names)
	}
	first, _, next := list("fieldSelector=data.team=x&limit=1")
	if second, _, end := list("fieldSelector=data.team=x&limit=1&continue=" + next); next == "" || end != "" || !slices.Equal(append(first, second...), []string{"a", "c"}) {
		t.Errorf("in pages: %q and %q, which has a next one: %v", first, second, end != "")
	}

	for name, team := range map[string]string{"b": "x", "a": "z"} {
		resp := r.ask(r.direct, http.MethodPatch, maps+"/"+name, `{"data":{"team":"`+team+`"}}`, "Content-Type", "application/merge-patch+json")
		_ = resp.Body.Close()
	}
	got := map[string]string{}
	by := ""
	for range 30 { // the index may be behind the writes for longer than one watch lasts
		var body string
		by, _, body = r.read(maps + "?watch=1&timeoutSeconds=2&fieldSelector=data.team=x&resourceVersion=" + version)
		for d := json.NewDecoder(strings.NewReader(body)); d.More(); {
			var e struct {
				Type   string
				Object struct{ Metadata struct{ Name string } }
			}
			if err := d.Decode(&e); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			got[e.Object.Metadata.Name] = e.Type
		}
		if by != "index" || len(got) >= 2 {
			break
		}
	}
	if by != "index" || len(got) != 2 || got["a"] != "DELETED" || got["b"] != "ADDED" {
		t.Errorf("by %q the watch has seen %v", by, got)
	}

	for path, want := range map[string]int{
		maps + "?fieldSelector=data.other=x":              http.StatusBadRequest, // its index is no field's
		maps + "?fieldSelector=data.team=x,data.none=x":   http.StatusBadRequest, // one has none
		"/api/v1/pods?fieldSelector=spec.hostNetwork=1":   http.StatusOK,         // the API server knows it better
		maps + "?fieldSelector=data.team=x&pretty=nobody": http.StatusBadRequest,
	} {
		if by, code, body := r.read(path); by != "" || code != want {
			t.Errorf("%s: by %q %d %.200s", path, by, code, body)
		}
	}
	if by, code, _ := r.read(maps + "?fieldSelector=data.team=x&resourceVersionMatch=Exact&resourceVersion=1"); by != "" || code != http.StatusGone {
		t.Errorf("a state that is not kept: by %q %d", by, code)
	}
}

func TestFieldsOfDeclaredIndexesAreTheAPIServersToRefuseUnlessWanted(t *testing.T) {
	t.Parallel()
	r := onDevCluster(t, nil)
	r.mirrored("/api/v1/namespaces")
	for done := false; !done; time.Sleep(20 * time.Millisecond) {
		_, err := r.index.AddIndexers(t.Context(), "dev/configmaps.v1", 3*time.Second, client.ByField("team", "data.team"))
		if done = err == nil; !done && t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	if by, code, body := r.read("/api/v1/configmaps?fieldSelector=data.team=x"); by != "" || code != http.StatusBadRequest {
		t.Errorf("by %q %d %s", by, code, body)
	}
}
