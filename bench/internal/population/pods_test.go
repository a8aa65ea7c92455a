package population

import (
	"bytes"
	"testing"
)

func TestPopulationHasManyTemplatesAndThirtyPodsANode(t *testing.T) {
	t.Parallel()
	p := Populate(1, 3000, 500)
	templates, nodes, owners, names, size := map[string]int{}, map[string]int{}, map[string]int{}, map[string]bool{}, 0
	for _, pod := range p.Pods {
		templates[pod.Labels["app.kubernetes.io/name"]]++
		nodes[pod.Spec.NodeName]++
		owners[string(pod.OwnerReferences[0].UID)]++
		names[pod.Namespace+"/"+pod.Name] = true
		size += len(Payload(pod))
	}
	if len(p.Pods) != 3000 || len(templates) != 500 || len(owners) != 500 || len(nodes) != 100 || len(names) != 3000 {
		t.Errorf("%d pods of %d templates, %d owners, %d nodes, %d names, want 3000, 500, 500, 100, 3000",
			len(p.Pods), len(templates), len(owners), len(nodes), len(names))
	}
	for node, n := range nodes {
		if n != PodsPerNode {
			t.Errorf("node %s has %d pods, want %d", node, n, PodsPerNode)
		}
	}
	if mean := size / len(p.Pods); mean < 4500 || mean > 6000 {
		t.Errorf("a pod has %d bytes, want about 5000", mean)
	}
}

func TestPopulationIsTheSameForTheSameSeed(t *testing.T) {
	t.Parallel()
	a, errA := Populate(7, 60, 20).Lines()
	b, errB := Populate(7, 60, 20).Lines()
	c, errC := Populate(8, 60, 20).Lines()
	if errA != nil || errB != nil || errC != nil {
		t.Fatal(errA, errB, errC)
	}
	if !bytes.Equal(a, b) {
		t.Error("the same seed gives two populations")
	}
	if bytes.Equal(a, c) {
		t.Error("two seeds give one population")
	}
}
