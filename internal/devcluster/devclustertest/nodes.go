package devclustertest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Nodes creates ready nodes, node-1 to node-n, with a lease each. Nobody runs their
// pods or renews their leases: they are for tests that need no more than the objects.
func Nodes(t testing.TB, url string, n int) {
	t.Helper()
	post := func(path, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("POST %s: %s %v: %s", path, resp.Status, err, text)
		}
	}
	for i := range n {
		name := fmt.Sprintf("node-%d", i+1)
		post("/api/v1/nodes", fmt.Sprintf(`{"metadata":{"name":%[1]q,"labels":{"kubernetes.io/hostname":%[1]q,"kubernetes.io/os":"linux"}},
			"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`, name))
		post("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", fmt.Sprintf(`{"metadata":{"name":%[1]q},"spec":{"holderIdentity":%[1]q,"leaseDurationSeconds":40}}`, name))
	}
}
