package wrote_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/deltaplane/deltaplane/internal/wrote"
)

func TestAWriteIsNamedByItsRequestAndItsAnswer(t *testing.T) {
	t.Parallel()
	const object = `{"kind":"Pod","metadata":{"name":"a","namespace":"ns","resourceVersion":"7"}}`
	for _, c := range []struct {
		method, path, answer string
		want                 string
	}{
		{http.MethodPost, "/api/v1/namespaces/ns/pods", object, "create pods.v1 ns/a 7"},
		{http.MethodPut, "/apis/batch/v1/namespaces/ns/jobs/b/status", object, "update jobs.v1.batch ns/b 7"},
		{http.MethodPatch, "/proxy/api/v1/nodes/n", object, "patch nodes.v1 n 7"},
		{http.MethodPost, "/api/v1/nodes", object, "create nodes.v1 a 7"},
		{http.MethodDelete, "/api/v1/namespaces/ns/pods/a", `{"kind":"Status"}`, "delete pods.v1 ns/a "},
		{http.MethodPut, "/api/v1/namespaces/ns/status", object, "update namespaces.v1 ns 7"},
		{http.MethodPost, "/api/v1/namespaces/ns/pods/a/eviction", `{"kind":"Status"}`, "create pods.v1 ns/a "},
		{http.MethodGet, "/api/v1/namespaces/ns/pods/a", object, ""},
		{http.MethodDelete, "/api/v1/namespaces/ns/pods", `{"kind":"Status"}`, ""},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"kind":"SubjectAccessReview"}`, ""},
		{http.MethodPost, "/version", object, ""},
	} {
		var n wrote.Notes
		n.Answered("dev", c.method, c.path, []byte(c.answer))
		got := ""
		for _, w := range n.All() {
			got = fmt.Sprint(w.Verb, " ", w.Resource, " ", w.Key, " ", w.RV)
		}
		if got != c.want {
			t.Errorf("%s %s is noted as %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

func TestNotesKeepTheLastWrites(t *testing.T) {
	t.Parallel()
	var n wrote.Notes
	for i := range 3 * wrote.Most {
		n.Answered("dev", http.MethodPut, fmt.Sprintf("/api/v1/nodes/n%d", i), nil)
	}
	if all := n.All(); len(all) != wrote.Most || all[0].Key != "n32" || all[15].Key != "n47" {
		t.Errorf("%d are kept: %v", len(all), all)
	}
	wrote.In(context.Background()).Answered("dev", http.MethodPut, "/api/v1/nodes/n", nil) // nobody notes
}
