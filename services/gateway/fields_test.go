package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestObjectsHaveTheFieldsThatAreAskedFor(t *testing.T) {
	t.Parallel()
	r := onDevCluster(t, nil)
	resp := r.ask(r.direct, http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"a","labels":{"b":"c"}},"data":{"x":"1","y":"2"}}`, "Content-Type", "application/json")
	_ = resp.Body.Close()
	r.mirrored("/api/v1/configmaps", "/api/v1/namespaces/default/configmaps/a")
	const masked = "/fields/data.x"
	item := func(object any) {
		t.Helper()
		text, _ := json.Marshal(object)
		o, _ := object.(map[string]any)
		metadata, _ := o["metadata"].(map[string]any)
		for _, name := range []string{"name", "namespace", "uid", "resourceVersion"} {
			if metadata[name] == nil {
				t.Errorf("%s has no %s", text, name)
			}
		}
		if len(metadata) != 4 || strings.Contains(string(text), `"y"`) || !strings.Contains(string(text), `"x"`) {
			t.Errorf("the object is %s", text)
		}
	}
	by, code, body := r.read(masked + "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name=a&resourceVersion=0")
	var list struct{ Items []any }
	if err := json.Unmarshal([]byte(body), &list); err != nil || by != "index" || code != http.StatusOK || len(list.Items) != 1 {
		t.Fatalf("by %q %d %s %v", by, code, body, err)
	}
	item(list.Items[0])
	_, _, body = r.read(masked + "/api/v1/configmaps?fieldSelector=metadata.name=a&watch=1&resourceVersion=0&timeoutSeconds=1")
	var event struct{ Object any }
	if err := json.NewDecoder(strings.NewReader(body)).Decode(&event); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	item(event.Object)
	for path, want := range map[string]string{
		"/fields/a[0]/api/v1/configmaps": "is not a path like metadata.name",
		"/fields//api/v1/configmaps":     "a name is empty",
	} {
		if _, code, body := r.read(path); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	put := r.ask(r.url, http.MethodPut, masked+"/api/v1/namespaces/default/configmaps/a", `{"metadata":{"name":"a"}}`, "Content-Type", "application/json")
	defer put.Body.Close()
	if raw, _ := io.ReadAll(put.Body); put.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("an object is replaced by a part of it: %d %s", put.StatusCode, raw)
	}
	patch := r.ask(r.url, http.MethodPatch, masked+"/api/v1/namespaces/default/configmaps/a", `{"data":{"x":"3"}}`, "Content-Type", "application/merge-patch+json")
	defer patch.Body.Close()
	if raw, _ := io.ReadAll(patch.Body); patch.StatusCode != http.StatusOK || !strings.Contains(string(raw), `"y":"2"`) {
		t.Errorf("a patch: %d %s", patch.StatusCode, raw)
	}
}
