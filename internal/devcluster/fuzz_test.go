package devcluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/deltaplane/deltaplane/internal/devcluster"
)

// serve makes one request that may be nonsense and checks that the answer is one the
// API gives on purpose: never 500 but for the two errors the real server leaves
// unclassified, and a Status for every failure.
func serve(t *testing.T, c *devcluster.Cluster, method string, u *url.URL, contentType string, body []byte) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, "/", bytes.NewReader(body))
	req.URL = u
	req.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	c.Handler().ServeHTTP(w, req)
	if w.Code < 400 {
		return
	}
	var s struct{ Kind, Reason, Message string }
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || s.Kind != "Status" || s.Message == "" {
		t.Fatalf("%s %s = %d %q, want a Status", method, u, w.Code, w.Body)
	}
	if w.Code == http.StatusInternalServerError && s.Reason != "" {
		t.Fatalf("%s %s = %d %q, want a classified error", method, u, w.Code, w.Body)
	}
}

func fuzzCluster(tb testing.TB) *devcluster.Cluster {
	tb.Helper()
	c := idle(tb, devcluster.Config{FreshTimeout: 1, HistoryEvents: 100})
	must(tb, c, http.MethodPost, pods, pod("p", nil, nil))
	must(tb, c, http.MethodPost, configMaps, configMap("a"))
	must(tb, c, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgetCRD)
	must(tb, c, http.MethodPost, widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"n":1}}`)
	return c
}

func FuzzPatchBodies(f *testing.F) {
	for _, body := range []string{
		`{"metadata":{"labels":{"a":"b"}}}`, `[{"op":"add","path":"/data/x","value":1}]`, `{"spec":null}`, `{"$patch":"replace"}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}`, `{"spec":{"containers":[{"name":"main","$patch":"delete"}]}}`,
		`[{"op":"move","from":"/data","path":"/data/x"}]`, `[{"op":"copy","from":"","path":"/data/x"}]`, `null`, `[null]`, `{"metadata":null}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"x"}]}}`, `{"spec":{"$retainKeys":["a"]}}`, `[{"op":"replace","path":"","value":null}]`,
		`{"status":{"containerStatuses":[null]}}`, `{"metadata":{"managedFields":[{}]}}`, `{"metadata":{"creationTimestamp":"x"}}`,
	} {
		for kind := range 3 {
			f.Add(uint8(kind), []byte(body))
		}
	}
	c := fuzzCluster(f)
	kinds := []string{"application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json"}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		for _, path := range []string{pods + "/p", pods + "/p/status", configMaps + "/a", widgets + "/a"} {
			serve(t, c, http.MethodPatch, &url.URL{Path: path, RawQuery: "dryRun=All"}, kinds[int(kind)%len(kinds)], body)
		}
	})
}

func FuzzCreateBodies(f *testing.F) {
	for _, body := range []string{
		`{}`, `null`, `[]`, `{"metadata":{"name":"x"}}`, `{"metadata":5}`, `{"metadata":{"ownerReferences":[{}]}}`, `{"kind":"Pod"}`,
		`{"metadata":{"name":"x"},"spec":{"template":null,"selector":{"matchExpressions":[{"operator":"In"}]},"manualSelector":true}}`,
		`{"metadata":{"name":"widgets.example.com"},"spec":{"names":5,"versions":[null]}}`, "k8s\x00\x0a\x04", `{"metadata":{"generateName":"é"}}`,
		`{"metadata":{"name":"x"},"spec":{"leaseDurationSeconds":1e400}}`, `{"a":` + `[[[[[[[[1]]]]]]]]}`,
	} {
		for kind := range 3 {
			f.Add(uint8(kind), []byte(body))
		}
	}
	c := fuzzCluster(f)
	kinds := []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		contentType := kinds[int(kind)%len(kinds)]
		for _, path := range []string{
			pods, configMaps, widgets, "/apis/batch/v1/namespaces/default/jobs", "/apis/coordination.k8s.io/v1/namespaces/default/leases",
			"/api/v1/namespaces/default/services", "/api/v1/namespaces/default/events", "/api/v1/namespaces/default/secrets", "/api/v1/nodes",
			"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", pods + "/p/binding", pods + "/p/eviction",
		} {
			serve(t, c, http.MethodPost, &url.URL{Path: path, RawQuery: "dryRun=All"}, contentType, body)
		}
		serve(t, c, http.MethodPut, &url.URL{Path: configMaps + "/a", RawQuery: "dryRun=All"}, contentType, body)
		serve(t, c, http.MethodDelete, &url.URL{Path: configMaps + "/none", RawQuery: "dryRun=All"}, contentType, body)
	})
}

func FuzzListOptions(f *testing.F) {
	for _, query := range []string{
		"limit=1", "limit=-1", "continue=abc", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYSJ9", "resourceVersion=99999999999999999999",
		"resourceVersion=5&resourceVersionMatch=Exact", "labelSelector=a+in+(b,c),!d", "fieldSelector=spec.nodeName!%3Dx,status.phase%3DPending",
		"labelSelector=%00", "timeoutSeconds=-5", "includeObject=Bad", "resourceVersion=0&limit=1", "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
	} {
		f.Add("/api/v1/pods", query)
		f.Add(widgets, query)
	}
	f.Add("/api/v1/namespaces//pods", "")
	f.Add("/apis//v1", "")
	f.Add("/api/v1/namespaces/a/b/c/d/e", "")
	c := fuzzCluster(f)
	f.Fuzz(func(t *testing.T, path, query string) {
		// A watch would go on: end it at once.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		req.URL = &url.URL{Path: path, RawQuery: query}
		w := httptest.NewRecorder()
		c.Handler().ServeHTTP(w, req)
		if w.Code == http.StatusInternalServerError && !bytes.Contains(w.Body.Bytes(), []byte("Invalid value")) {
			t.Fatalf("GET %s?%s = %d %q", path, query, w.Code, w.Body)
		}
	})
}
