package main

import (
	"bytes"
	"testing"
)

func TestPopulationHasManyTemplatesAndThirtyPodsANode(t *testing.T) {
	t.Parallel()
	p := populate(1, 3000, 500)
	templates, nodes, owners, names, size := map[string]int{}, map[string]int{}, map[string]int{}, map[string]bool{}, 0
	for _, pod := range p.pods {
		templates[pod.Labels["app.kubernetes.io/name"]]++
		nodes[pod.Spec.NodeName]++
		owners[string(pod.OwnerReferences[0].UID)]++
		names[pod.Namespace+"/"+pod.Name] = true
		size += len(payload(pod))
	}
	if len(p.pods) != 3000 || len(templates) != 500 || len(owners) != 500 || len(nodes) != 100 || len(names) != 3000 {
		t.Errorf("%d pods of %d templates, %d owners, %d nodes, %d names, want 3000, 500, 500, 100, 3000",
			len(p.pods), len(templates), len(owners), len(nodes), len(names))
	}
	for node, n := range nodes {
		if n != podsPerNode {
			t.Errorf("node %s has %d pods, want %d", node, n, podsPerNode)
		}
	}
	if mean := size / len(p.pods); mean < 4500 || mean > 6000 {
		t.Errorf("a pod has %d bytes, want about 5000", mean)
	}
}

func TestPopulationIsTheSameForTheSameSeed(t *testing.T) {
	t.Parallel()
	a, errA := populate(7, 60, 20).lines()
	b, errB := populate(7, 60, 20).lines()
	c, errC := populate(8, 60, 20).lines()
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
