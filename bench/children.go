package main

import (
	"github.com/deltaplane/deltaplane/bench/adopt"
	"github.com/deltaplane/deltaplane/bench/agent"
	"github.com/deltaplane/deltaplane/bench/gateway"
	"github.com/deltaplane/deltaplane/bench/index"
	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/bench/logs"
	"github.com/deltaplane/deltaplane/bench/queue"
	"github.com/deltaplane/deltaplane/bench/slice"
)

// servants are the kinds of children.
func servants() map[string]harness.MakeServant {
	return map[string]harness.MakeServant{
		"index":     system.IndexServer,
		"queue":     system.QueueServer,
		"delta":     slice.DeltaServer,
		"pipeline":  system.PipelineServer,
		"informer":  system.InformerServer,
		"worker":    queue.WorkerChild,
		"plane":     plane.PlaneServer,
		"operator":  adopt.OperatorServer,
		"gateway":   gateway.Server,
		"runtime":   agent.RuntimeServer,
		"agent":     agent.AgentServer,
		"source":    system.SourceServer,
		"replica":   system.ReplicaServer,
		"api":       system.APIServer,
		"cache":     system.CacheServer,
		"prober":    index.ProberServer,
		"visible":   index.VisibleServer,
		"script":    logs.ScriptServer,
		"reflector": system.ReflectorServer,
		"reader":    logs.ReaderServer,
		"json":      logs.JSONServer,
	}
}
