package reflector

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestTwoNamesOfAResourceThatNobodyMirrorsYetAreTheSame(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/api/v1" {
			http.NotFound(w, req)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[`+
			`{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["list","watch"]},`+
			`{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]}]}`)
	}))
	defer srv.Close()
	kc, err := kube.New(&rest.Config{Host: srv.URL}, kube.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{cfg: Config{DiscoverEvery: time.Minute}, clusters: []*cluster{{name: "dev", kube: kc, catalog: newCatalog(kc)}}}
	same := s.sameAs(t.Context(), Resource{Cluster: "dev", Name: "configmaps.v1"})
	if !same(Resource{Cluster: "dev", Name: "configmaps"}) || !same(Resource{Name: "configmaps"}) {
		t.Error("configmaps is another resource than configmaps.v1")
	}
	for _, other := range []Resource{{Cluster: "dev", Name: "pods"}, {Cluster: "dev", Name: "nonsense"}, {Cluster: "moon", Name: "configmaps"}} {
		if same(other) {
			t.Errorf("%s is the same resource as configmaps.v1", other)
		}
	}
}
