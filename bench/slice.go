package main

// sliceFamily holds the figures of the first end-to-end slice: API server,
// log, index, queue.
func sliceFamily() family {
	return family{
		name:  "slice",
		about: "reads of the index, queue cycles, time to serve 20,000 pods, delta to visible",
		parts: []part{
			{"index", indexReads},
			{"queue", queueCycles},
			{"delta", deltaVisible},
			{"cluster", clusterPods},
		},
	}
}

// servants are the kinds of children.
func servants() map[string]makeServant {
	return map[string]makeServant{
		"index":     indexServer,
		"queue":     queueServer,
		"delta":     deltaServer,
		"pipeline":  pipelineServer,
		"informer":  informerServer,
		"worker":    workerChild,
		"plane":     planeServer,
		"runtime":   runtimeServer,
		"agent":     agentServer,
		"source":    sourceServer,
		"replica":   replicaServer,
		"api":       apiServer,
		"cache":     cacheServer,
		"prober":    proberServer,
		"visible":   visibleServer,
		"script":    scriptServer,
		"reflector": reflectorServer,
		"reader":    readerServer,
		"json":      jsonServer,
	}
}
