package gateway_test

import (
	"net/http"
	"testing"
	"time"
)

// Constrained impersonation has rights of its own, of which the gateway knows nothing: who has
// only those is answered by the API server, as it answers without a gateway.
func TestRealConstrainedImpersonationIsTheAPIServersToJudge(t *testing.T) {
	t.Parallel()
	r := onRealServer(t, nil)
	n := r.tenant()
	jane := "jane-" + n.ns
	const rbac, head = "/apis/rbac.authorization.k8s.io/v1", `"apiVersion":"rbac.authorization.k8s.io/v1"`
	grant := func(name, rules string) {
		n.create(rbac+"/clusterroles", `{`+head+`,"kind":"ClusterRole","metadata":{"name":%q},"rules":[`+rules+`]}`, name)
		n.create(rbac+"/clusterrolebindings", `{`+head+`,"kind":"ClusterRoleBinding","metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},
			"subjects":[{"kind":"ServiceAccount","namespace":%q,"name":"robot"}]}`, name, name, n.ns)
		t.Cleanup(func() {
			for _, of := range []string{"/clusterroles/", "/clusterrolebindings/"} {
				req, _ := http.NewRequest(http.MethodDelete, r.direct+rbac+of+name, nil) //nolint:noctx // the test's has ended
				if resp, err := r.api.Do(req); err == nil {
					_ = resp.Body.Close()
				}
			}
		})
	}
	n.create(roleBindings+n.ns+"/rolebindings", `{"metadata":{"name":"jane"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"view"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, jane)
	grant("constrained-"+n.ns, `{"verbs":["impersonate:user-info"],"apiGroups":["authentication.k8s.io"],"resources":["users"],"resourceNames":["`+jane+`","boss"]},
		{"verbs":["impersonate-on:user-info:list"],"apiGroups":[""],"resources":["configmaps"]}`)
	mine := "/api/v1/namespaces/" + n.ns + "/configmaps"
	ask := func(base, path, as string) (by string, code int) {
		resp := r.ask(base, http.MethodGet, path, "", "Authorization", "Bearer "+n.token, "Impersonate-User", as)
		_ = resp.Body.Close()
		return resp.Header.Get("X-Deltaplane-Served-By"), resp.StatusCode
	}
	direct := func(path, as string) int {
		_, code := ask(r.direct, path, as)
		return code
	}
	eventually := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	eventually("the API server lets the robot be jane when it lists", func() bool { return direct(mine, jane) == http.StatusOK })
	for _, c := range []struct {
		name, path, as string
		code           int
	}{
		{"list as jane", mine + "?resourceVersion=0", jane, http.StatusOK},
		{"list as jane, everything", "/api/v1/configmaps?resourceVersion=0", jane, http.StatusForbidden},
		{"watch as jane", mine + "?watch=1&timeoutSeconds=1&resourceVersion=0", jane, http.StatusForbidden},
		{"get as jane", mine + "/a?resourceVersion=0", jane, http.StatusForbidden},
		{"list as somebody who may not", mine + "?resourceVersion=0", "boss", http.StatusForbidden},
		{"list as somebody else", mine + "?resourceVersion=0", "eve", http.StatusForbidden},
		{"list as a service account", mine + "?resourceVersion=0", "system:serviceaccount:" + n.ns + ":robot", http.StatusForbidden},
		{"list as a node", mine + "?resourceVersion=0", "system:node:a", http.StatusForbidden},
	} {
		by, code := ask(r.url, c.path, c.as)
		if there := direct(c.path, c.as); by != "" || code != c.code || there != c.code {
			t.Errorf("%s: by %q %d, by the API server itself %d, want %d", c.name, by, code, there, c.code)
		}
	}
	grant("legacy-"+n.ns, `{"verbs":["impersonate"],"apiGroups":[""],"resources":["users"],"resourceNames":["`+jane+`"]}`)
	eventually("the index answers the robot as jane", func() bool {
		by, code := ask(r.url, mine+"?resourceVersion=0", jane)
		return by == "index" && code == http.StatusOK
	})
}
