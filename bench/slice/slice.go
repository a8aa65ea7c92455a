package slice

import "github.com/deltaplane/deltaplane/bench/internal/harness"

// Family holds the figures of the first end-to-end slice: API server,
// log, index, queue.
func Family() harness.Family {
	return harness.Family{
		Name:  "slice",
		About: "reads of the index, queue cycles, time to serve 20,000 pods, delta to visible",
		Parts: []harness.Part{
			{Name: "index", Run: indexReads},
			{Name: "queue", Run: queueCycles},
			{Name: "delta", Run: deltaVisible},
			{Name: "cluster", Run: clusterPods},
		},
	}
}
