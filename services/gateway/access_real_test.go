package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
)

// tenant is a service account of a real API server with rights in its namespace.
type tenant struct {
	*rig
	ns, token string
}

func (r *rig) tenant() *tenant {
	r.t.Helper()
	n := &tenant{rig: r, ns: fmt.Sprintf("tenant-%d", time.Now().UnixNano()%1e9)}
	n.create("/api/v1/namespaces", `{"metadata":{"name":%q}}`, n.ns)
	n.create("/api/v1/namespaces/"+n.ns+"/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	n.create("/apis/rbac.authorization.k8s.io/v1/namespaces/"+n.ns+"/roles",
		`{"metadata":{"name":"view"},"rules":[{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["configmaps"]}]}`)
	n.bind()
	var made struct{ Status struct{ Token string } }
	n.ok(json.Unmarshal(n.create("/api/v1/namespaces/"+n.ns+"/serviceaccounts/robot/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`), &made))
	n.token = made.Status.Token
	n.create("/api/v1/namespaces/"+n.ns+"/configmaps", `{"metadata":{"name":"a"}}`)
	if r.svc != nil { // version 0 may be one before
		r.mirrored("/api/v1/namespaces/" + n.ns + "/configmaps/a")
	}
	return n
}

const roleBindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/"

func (n *tenant) bind() {
	n.create(roleBindings+n.ns+"/rolebindings", `{"metadata":{"name":"view"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"view"},
		"subjects":[{"kind":"ServiceAccount","namespace":%q,"name":"robot"}]}`, n.ns)
}

func (n *tenant) create(path, body string, args ...any) []byte {
	n.t.Helper()
	resp := n.ask(n.direct, http.MethodPost, path, fmt.Sprintf(body, args...), "Content-Type", "application/json")
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusCreated {
		n.t.Fatalf("POST %s: %d %s %v", path, resp.StatusCode, raw, err)
	}
	return raw
}

func (n *tenant) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// ask sends a request of the administrator, unless a header says otherwise.
func (r *rig) ask(base, method, path, body string, header ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	hc := r.client
	if base == r.direct {
		hc = r.api
	}
	resp, err := hc.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

// read says how a GET is answered: by whom, with what code and body.
func (r *rig) read(path string, header ...string) (by string, code int, body string) {
	r.t.Helper()
	resp := r.ask(r.url, http.MethodGet, path, "", header...)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.Header.Get(answer.ServedBy), resp.StatusCode, string(raw)
}

const any0 = "?resourceVersion=0"

func TestRealCallersReadWhatTheirClusterPermits(t *testing.T) {
	t.Parallel()
	r := onRealServer(t, nil)
	r.mirrored("/api/v1/configmaps")
	n := r.tenant()
	mine, all := "/api/v1/namespaces/"+n.ns+"/configmaps"+any0, "/api/v1/configmaps"+any0
	auth := []string{"Authorization", "Bearer " + n.token}
	as := func(header ...string) []string { return header }
	for _, tc := range []struct {
		what, path string
		header     []string
		by         string
		code       int
	}{
		{"the administrator, everything", all, nil, "index", 200},
		{"the tenant, its namespace", mine, auth, "index", 200},
		{"the tenant, one object", "/api/v1/namespaces/" + n.ns + "/configmaps/a" + any0, auth, "index", 200},
		{"the tenant, everything", all, auth, "", 403},
		{"the tenant, what its role does not name", "/api/v1/namespaces/" + n.ns + "/pods" + any0, auth, "", 403},
		{"nobody", all, as("Authorization", "Bearer nothing"), "", 401},
		{"other credentials", all, as("Authorization", "Basic YTpi"), "", 401},
		{"the administrator as the tenant, its namespace", mine, as("Impersonate-User", "system:serviceaccount:"+n.ns+":robot"), "index", 200},
		{"the administrator as the tenant, everything", all, as("Impersonate-User", "system:serviceaccount:"+n.ns+":robot"), "", 403},
		{"the administrator as one of a group that may", all, as("Impersonate-User", "x", "Impersonate-Group", "system:masters"), "index", 200},
		{"the administrator as one of a group and with more about it", all, as("Impersonate-User", "x", "Impersonate-Group", "system:masters", "Impersonate-Uid", "1", "Impersonate-Extra-Team%2fa", "b"), "index", 200},
		{"the tenant as somebody else", mine, append(as("Impersonate-User", "x", "Impersonate-Group", "system:masters"), auth...), "", 403},
		{"a group of nobody", all, as("Impersonate-Group", "system:masters"), "", 400},
		{"who claims to be somebody by headers of a proxy", all, append(as("X-Remote-User", "admin", "X-Remote-Group", "system:masters"), auth...), "", 403},
	} {
		by, code, body := r.read(tc.path, tc.header...)
		if by != tc.by || code != tc.code {
			t.Errorf("%s: answered by %q with %d, want %q with %d: %.300s", tc.what, by, code, tc.by, tc.code, body)
		}
	}
	if _, _, body := r.read(mine, auth...); !strings.Contains(body, `"name":"a"`) {
		t.Errorf("the tenant does not see its object: %s", body)
	}
	// The API server's own words are what a caller gets.
	_, _, refused := r.read(all, auth...)
	if want := fmt.Sprintf(`User \"system:serviceaccount:%s:robot\" cannot list resource \"configmaps\"`, n.ns); !strings.Contains(refused, want) {
		t.Errorf("the refusal is %s, want %s in it", refused, want)
	}
}

func TestRealAWatchEndsWhenItsCallerMayNoMore(t *testing.T) {
	t.Parallel()
	r := onRealServer(t, nil)
	r.mirrored("/api/v1/configmaps")
	n := r.tenant()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/api/v1/namespaces/"+n.ns+"/configmaps?watch=1&resourceVersion=0", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.token)
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if by := resp.Header.Get(answer.ServedBy); by != "index" {
		t.Fatalf("the watch is answered by %q: %s", by, resp.Status)
	}
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "ADDED") {
		t.Fatalf("%q, %v", line, err)
	}
	began := time.Now()
	r.ask(r.direct, http.MethodDelete, roleBindings+n.ns+"/rolebindings/view", "").Body.Close()
	for {
		if _, err := lines.ReadString('\n'); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the watch ended %v after its binding", time.Since(began).Round(time.Millisecond))
	if by, code, _ := r.read("/api/v1/namespaces/"+n.ns+"/configmaps"+any0, "Authorization", "Bearer "+n.token); by != "" || code != 403 {
		t.Errorf("a list after that is answered by %q with %d", by, code)
	}
}

// The roles that are shipped are all that a gateway's own credentials need.
func TestRealTheRolesOfAGatewayAreEnough(t *testing.T) {
	t.Parallel()
	r, file := realServer(t)
	name := fmt.Sprintf("gateway-%d", time.Now().UnixNano()%1e9)
	n := &tenant{rig: r, ns: "default"}
	n.create("/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":%q}}`, name)
	roles, err := os.ReadFile("../../deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.SplitSeq(string(roles), "\n---\n") {
		for _, role := range []string{"deltaplane-authority", "deltaplane-gateway"} {
			if !strings.Contains(text, "kind: ClusterRole\n") || !strings.Contains(text, "name: "+role+"\n") {
				continue
			}
			resp := r.ask(r.direct, http.MethodPatch, "/apis/rbac.authorization.k8s.io/v1/clusterroles/"+role+"?fieldManager=test&force=true", text, "Content-Type", "application/apply-patch+yaml")
			_ = resp.Body.Close()
			if resp.StatusCode >= http.StatusMultipleChoices {
				t.Fatalf("%s: %s", role, resp.Status)
			}
			n.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},
				"subjects":[{"kind":"ServiceAccount","namespace":"default","name":%q}]}`, name+"-"+role, role, name)
		}
	}
	var made struct{ Status struct{ Token string } }
	n.ok(json.Unmarshal(n.create("/api/v1/namespaces/default/serviceaccounts/"+name+"/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`), &made))
	rc, err := clientcmd.BuildConfigFromFlags("", file)
	n.ok(err)
	rc.BearerToken = made.Status.Token
	r.own, err = kube.New(rc, kube.Config{})
	n.ok(err)
	t.Cleanup(r.own.Close)
	r.start(kube.Config{Kubeconfig: file}, nil)
	for _, path := range []string{"/api/v1/configmaps", "/api/v1/pods", "/apis/apps/v1/deployments", "/apis/batch/v1/jobs"} {
		r.mirrored(path)
	}
	c := r.tenant()
	auth := []string{"Authorization", "Bearer " + c.token}
	for { // a busy index may be behind, and is not waited for long
		by, code, body := r.read("/api/v1/namespaces/"+c.ns+"/configmaps", auth...)
		if code != http.StatusOK {
			t.Fatalf("a recent list of a caller is answered by %q with %d: %.300s", by, code, body)
		}
		if by == "index" {
			break
		}
	}
}
