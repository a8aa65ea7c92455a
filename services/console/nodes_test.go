package console_test

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

func TestNodesShowSilenceTaintsAndEvictions(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	devclustertest.Nodes(t, r.kube.Address(), 2)
	nodes := kube.Resource{Version: "v1", Name: "nodes", Kind: "Node"}
	if _, err := r.kube.Patch(t.Context(), nodes.Ref("", "node-1"), kube.MergePatch, []byte(`{"metadata":{"labels":{"topology.kubernetes.io/region":"eu","topology.kubernetes.io/zone":"a"}},
		"spec":{"taints":[{"key":"down","value":"yes","effect":"NoExecute"}]}}`), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	leases := kube.Resource{Group: "coordination.k8s.io", Version: "v1", Name: "leases", Kind: "Lease", Namespaced: true}
	if _, err := r.kube.Patch(t.Context(), leases.Ref("kube-node-lease", "node-1"), kube.MergePatch, []byte(`{"spec":{"renewTime":"2020-01-01T00:00:00.000000Z"}}`), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	if _, err := r.kube.Create(t.Context(), pods.Ref("default", ""), []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"default"},
		"spec":{"nodeName":"node-1","containers":[{"name":"c","image":"i"}]}}`), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.queue("dev/tainteviction")
	r.later("dev/tainteviction", "default/web")
	r.later("dev/tainteviction", client.ResyncKey) // the controller's own, which is no pod
	p := r.open()
	p.subscribe(1, &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Nodes{Nodes: &consolev1.NodesView{}}})
	m := p.until("the nodes", func(m *consolev1.OpenResponse) bool {
		all := m.GetNodes().GetNodes()
		return len(all) == 2 && len(m.GetNodes().GetSilent()) == 0 && len(all[0].GetTaints()) == 1 && len(all[0].GetEvictions()) == 1 && all[0].GetSilence() != nil
	})
	n := m.GetNodes().GetNodes()[0]
	if n.GetName() != "node-1" || n.GetZone() != "eu/a" || n.GetTaints()[0] != "down=yes:NoExecute" || n.GetPods() != 1 || !n.GetPodsKnown() || n.GetHealth() != consolev1.Health_HEALTH_WARNING {
		t.Errorf("a node is %v", n)
	}
	if e := n.GetEvictions()[0]; e.GetPod() != "default/web" || e.GetDue() == nil || !strings.HasSuffix(e.GetQueue(), "/tainteviction") {
		t.Errorf("an eviction is %v", e)
	}
	if n.GetSilence().AsDuration() < 365*24*3600e9 || m.GetNodes().GetNodes()[1].GetSilence() != nil {
		t.Errorf("silences are %v and %v", n.GetSilence(), m.GetNodes().GetNodes()[1].GetSilence())
	}
}
