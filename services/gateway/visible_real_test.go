package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// names are the objects of a list, as namespace/name, its version and its continue token.
func (n *tenant) names(path string) (all []string, version, next string) {
	n.t.Helper()
	by, code, body := n.read(path, "Authorization", "Bearer "+n.token)
	var l struct {
		Metadata struct{ ResourceVersion, Continue string }
		Items    []struct {
			Metadata struct{ Namespace, Name string }
		}
	}
	if err := json.Unmarshal([]byte(body), &l); err != nil || code != http.StatusOK || by != "index" {
		n.t.Fatalf("%s: by %q %d %.300s %v", path, by, code, body, err)
	}
	for _, o := range l.Items {
		if o.Metadata.Name != "kube-root-ca.crt" {
			all = append(all, o.Metadata.Namespace+"/"+o.Metadata.Name)
		}
	}
	return all, l.Metadata.ResourceVersion, l.Metadata.Continue
}

// grant lets the tenant read another one's namespace.
func (n *tenant) grant(other *tenant) {
	n.t.Helper()
	n.create(roleBindings+other.ns+"/rolebindings", `{"metadata":{"name":"guest"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"view"},
		"subjects":[{"kind":"ServiceAccount","namespace":%q,"name":"robot"}]}`, n.ns)
}

func TestRealACallerSeesWhatItMayOfWhatItMayNotSeeAsAWhole(t *testing.T) {
	t.Parallel()
	r := onRealServer(t, nil)
	r.mirrored("/api/v1/configmaps", "/api/v1/namespaces", "/api/v1/nodes")
	one, two := r.tenant(), r.tenant()
	one.create("/api/v1/namespaces/"+one.ns+"/configmaps", `{"metadata":{"name":"b"}}`)
	auth := []string{"Authorization", "Bearer " + one.token}
	for _, path := range []string{"/api/v1/configmaps", request.VisiblePrefix + "/api/v1/nodes", request.VisiblePrefix + "/api/v1/namespaces/" + two.ns + "/configmaps"} {
		if _, code, _ := one.read(path, auth...); code != http.StatusForbidden {
			t.Errorf("%s: %d", path, code)
		}
	}
	all := request.VisiblePrefix + "/api/v1/configmaps"
	mine := []string{one.ns + "/a", one.ns + "/b"}
	var version string
	for _, query := range []string{"", any0, "?labelSelector=!none"} {
		var got []string
		if got, version, _ = one.names(all + query); !slices.Equal(got, mine) {
			t.Errorf("%q: %q, want %q", query, got, mine)
		}
	}
	var paged []string
	for query := "?limit=1"; ; {
		some, _, next := one.names(all + query)
		if paged = append(paged, some...); next == "" {
			break
		}
		query = "?limit=1&continue=" + url.QueryEscape(next)
	}
	if !slices.Equal(paged, mine) {
		t.Errorf("by pages: %q, want %q", paged, mine)
	}
	if got, _, _ := one.names(request.VisiblePrefix + "/api/v1/namespaces"); len(got) != 0 {
		t.Errorf("namespaces %q are visible by no role", got)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events := one.events(ctx, all+"?watch=1&resourceVersion="+version)
	two.create("/api/v1/namespaces/"+two.ns+"/configmaps", `{"metadata":{"name":"hidden"}}`)
	one.create("/api/v1/namespaces/"+one.ns+"/configmaps", `{"metadata":{"name":"c"}}`)
	if e := <-events; !strings.Contains(e, `"ADDED"`) || !strings.Contains(e, `"name":"c"`) {
		t.Errorf("the first event is %s", e)
	}
	one.grant(two)
	if e := <-events; !strings.Contains(e, `"ERROR"`) || !strings.Contains(e, "410") {
		t.Errorf("when more is visible, the watch says %s", e)
	}
	if e, more := <-events; more {
		t.Errorf("behind that it says %s", e)
	}
	var got []string
	for !slices.Contains(got, two.ns+"/hidden") {
		if got, _, _ = one.names(all); ctx.Err() != nil {
			t.Fatalf("what is visible now does not come: %q", got)
		}
	}
	if _, code, body := one.read(all+"?watch=1&resourceVersion="+version, auth...); code != http.StatusGone {
		t.Errorf("a watch behind the list of before: %d %s", code, body)
	}
}

// events are the lines of a watch, until it ends.
func (n *tenant) events(ctx context.Context, path string) <-chan string {
	n.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+path, nil)
	n.ok(err)
	req.Header.Set("Authorization", "Bearer "+n.token)
	resp, err := n.client.Do(req)
	n.ok(err)
	if resp.StatusCode != http.StatusOK {
		n.t.Fatalf("%s: %s", path, resp.Status)
	}
	out := make(chan string)
	go func() {
		defer close(out)
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			select {
			case out <- lines.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
