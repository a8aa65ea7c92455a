// Package api is the conformance suite of the Kubernetes API behaviour Deltaplane
// depends on: lists, watches, writes, patches, deletion, conflicts and collection.
// Run makes the same checks on any server, so that the dev cluster can be held
// against a real kube-apiserver.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// Target is a server under test.
type Target struct {
	// URL is the server's address without a trailing slash.
	URL string
	// Client carries whatever authenticates to the server. It must have no timeout.
	Client *http.Client
	// Compact makes the server forget its history; checks of expiry are skipped without it.
	Compact func()
	// CachesWatches says that watches outlive Compact.
	CachesWatches bool
	// FoldsEvents says that changes of one object that quickly follow each other may be one event.
	// With the creation among them it is ADDED, also for a watch from a version in between.
	FoldsEvents bool
}

// Content types of requests.
const (
	jsonType      = "application/json"
	mergePatch    = "application/merge-patch+json"
	jsonPatch     = "application/json-patch+json"
	strategic     = "application/strategic-merge-patch+json"
	timeout       = 30 * time.Second // for what the server does in its own time
	silence       = 500 * time.Millisecond
	unusedManager = "nobody" // a scheduler nobody runs, so that pods stay pending
)

// Run makes every check on the target, each in a namespace of its own.
func Run(t *testing.T, target Target) {
	t.Run("together", func(t *testing.T) { runTogether(t, target) })
	t.Run("expiry", func(t *testing.T) { checkExpiry(t, target) })
}

func runTogether(t *testing.T, target Target) {
	for _, group := range []struct {
		name  string
		check func(*testing.T, Target)
	}{
		{"list", checkList},
		{"watch", checkWatch},
		{"write", checkWrite},
		{"conflict", checkConflict},
		{"patch", checkPatch},
		{"delete", checkDelete},
		{"collect", checkCollect},
		{"job", checkJob},
		{"pod", checkPod},
		{"crd", checkCRD},
		{"negotiate", checkNegotiate},
		{"bad input", checkBadInput},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			group.check(t, target)
		})
	}
}

// object is any JSON object.
type object map[string]any

// at follows a dotted path; nil when it leads nowhere.
func (o object) at(path string) any {
	var v any = map[string]any(o)
	for key := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

// text is the string at a path, or "".
func (o object) text(path string) string {
	s, _ := o.at(path).(string)
	return s
}

func (o object) rv() string { return o.text("metadata.resourceVersion") }

// reply is a response that was read whole.
type reply struct {
	code   int
	body   object
	header http.Header
	raw    string
}

// status is the reply as an error.
func (r reply) status(t *testing.T) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal([]byte(r.raw), &s); err != nil {
		t.Fatalf("the reply is no Status: %v: %.300s", err, r.raw)
	}
	return s
}

// want fails the test unless the reply has the code and, for an error, the reason.
func (r reply) want(t *testing.T, code int, reason metav1.StatusReason) reply {
	t.Helper()
	if r.code != code {
		t.Fatalf("code = %d, want %d: %.500s", r.code, code, r.raw)
	}
	if code < 400 {
		return r
	}
	s := r.status(t)
	if s.Kind != "Status" || s.APIVersion != "v1" || s.Status != metav1.StatusFailure || s.Reason != reason || int(s.Code) != code || s.Message == "" {
		t.Fatalf("status = %+v, want a v1 Status of reason %q with code %d and a message", s, reason, code)
	}
	return r
}

// ok fails the test unless the request succeeded.
func (r reply) ok(t *testing.T) object {
	t.Helper()
	if r.code < 200 || r.code > 299 {
		t.Fatalf("code = %d, want success: %.500s", r.code, r.raw)
	}
	return r.body
}

// causes lists the fields an Invalid error names.
func (r reply) causes(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	if d := r.status(t).Details; d != nil {
		for _, c := range d.Causes {
			out[c.Field] = string(c.Type)
		}
	}
	return out
}

// request is one call; body may be a string, bytes or anything that marshals.
func (g Target) request(ctx context.Context, t *testing.T, method, path string, body any, contentType string, header ...string) *http.Response {
	t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	case []byte:
		in = bytes.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, g.URL+path, in)
	if err != nil {
		t.Fatal(err)
	}
	if in != nil {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("User-Agent", "apisuite/1.0")
	req.Header.Set("Accept", jsonType)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := g.Client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp
}

func (g Target) do(t *testing.T, method, path string, body any, contentType string, header ...string) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	resp := g.request(ctx, t, method, path, body, contentType, header...)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	r := reply{code: resp.StatusCode, header: resp.Header, raw: string(raw)}
	_ = json.Unmarshal(raw, &r.body) // what is not JSON is compared as text
	return r
}

func (g Target) get(t *testing.T, path string) reply {
	t.Helper()
	return g.do(t, http.MethodGet, path, nil, "")
}

func (g Target) post(t *testing.T, path string, body any) reply {
	t.Helper()
	return g.do(t, http.MethodPost, path, body, jsonType)
}

func (g Target) put(t *testing.T, path string, body any) reply {
	t.Helper()
	return g.do(t, http.MethodPut, path, body, jsonType)
}

func (g Target) patch(t *testing.T, kind, path string, body any) reply {
	t.Helper()
	return g.do(t, http.MethodPatch, path, body, kind)
}

func (g Target) delete(t *testing.T, path string, body any) reply {
	t.Helper()
	return g.do(t, http.MethodDelete, path, body, jsonType)
}

// namespace makes a namespace with its default service account, and removes it when
// the test ends.
func (g Target) namespace(t *testing.T) string {
	t.Helper()
	name := "api-" + rand.String(8)
	g.post(t, "/api/v1/namespaces", object{"metadata": object{"name": name}}).want(t, http.StatusCreated, "")
	t.Cleanup(func() {
		req, err := http.NewRequest(http.MethodDelete, g.URL+"/api/v1/namespaces/"+name, nil) //nolint:noctx // the test's context has ended
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := g.Client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	})
	eventually(t, "the namespace has a service account", func() bool {
		return g.get(t, "/api/v1/namespaces/"+name+"/serviceaccounts/default").code == http.StatusOK
	})
	return name
}

// eventually waits for what the server does in its own time.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", timeout, what)
		}
	}
}

// path is the collection of a resource in a namespace.
func path(resource, namespace string) string {
	group, name := "/api/v1", resource
	switch resource {
	case "jobs":
		group = "/apis/batch/v1"
	case "leases":
		group = "/apis/coordination.k8s.io/v1"
	}
	return fmt.Sprintf("%s/namespaces/%s/%s", group, namespace, name)
}

func configMap(name string, labels object) object {
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name, "labels": labels}, "data": object{"k": "v"}}
}

func pod(name string) object {
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name}, "spec": object{
		"schedulerName": unusedManager, "containers": []object{{"name": "main", "image": "busybox:1"}},
	}}
}

func job(name string) object {
	return object{"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": name}, "spec": object{
		"template": object{"spec": object{"restartPolicy": "Never", "schedulerName": unusedManager, "containers": []object{{"name": "main", "image": "busybox:1"}}}},
	}}
}

// items are the objects of a list.
func items(list object) []object {
	raw, _ := list["items"].([]any)
	out := make([]object, 0, len(raw))
	for _, v := range raw {
		if m, ok := v.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func names(list object) []string {
	var out []string
	for _, o := range items(list) {
		out = append(out, o.text("metadata.name"))
	}
	return out
}
