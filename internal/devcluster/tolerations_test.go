package devcluster_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
)

func TestPodsAreGivenTheDefaultTolerationsTheyLack(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{DefaultTolerations: &taint.Defaults{NotReady: 7, Unreachable: 0}})
	must(t, c, http.MethodPost, pods, pod("a", nil, nil))
	want := "[map[effect:NoExecute key:node.kubernetes.io/not-ready operator:Exists tolerationSeconds:7]" +
		" map[effect:NoExecute key:node.kubernetes.io/unreachable operator:Exists tolerationSeconds:0]]"
	tolerations := func(d doc) string { return fmt.Sprint(d.at("spec.tolerations")) }
	got := must(t, c, http.MethodGet, pods+"/a", nil)
	if tolerations(got) != want {
		t.Errorf("created: tolerations = %s, want %s", tolerations(got), want)
	}
	code, updated := call(t, c, http.MethodPut, pods+"/a", got)
	for code == http.StatusConflict { // the cluster binds and runs the pod meanwhile
		got = must(t, c, http.MethodGet, pods+"/a", nil)
		code, updated = call(t, c, http.MethodPut, pods+"/a", got)
	}
	if code != http.StatusOK {
		t.Fatalf("PUT = %d %v", code, updated)
	}
	if tolerations(updated) != want || updated.text("metadata.resourceVersion") != got.text("metadata.resourceVersion") {
		t.Errorf("an update that changes nothing makes it %s at %s, want it as it was at %s", tolerations(updated), updated.text("metadata.resourceVersion"), got.text("metadata.resourceVersion"))
	}
	if _, err := devcluster.New(devcluster.Config{DefaultTolerations: &taint.Defaults{NotReady: -1}}, nil); err == nil {
		t.Error("negative seconds are accepted")
	}
}
