package index

import (
	"context"
	"errors"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// Family holds the figures of the indexer: what reads cost beside echoes
// and how long they take under load, what a pod costs in memory and in time
// beside a client-go informer, how soon changes are seen, and how many watchers
// a core feeds.
func Family() harness.Family {
	return harness.Family{
		Name:  "index",
		About: "reads and query streams beside echoes, latency under load, memory and cold sync beside a client-go informer, watches",
		Parts: []harness.Part{
			{Name: "reads", Run: indexCalls},
			{Name: "access", Run: indexAccess},
			{Name: "callers", Run: indexCallers},
			{Name: "hostile", Run: indexHostile},
			{Name: "unknown", Run: indexUnknown},
			{Name: "handshakes", Run: indexHandshakes},
			{Name: "latency", Run: indexLatency},
			{Name: "pods", Run: indexPods},
			{Name: "managed", Run: indexManaged},
			{Name: "million", Run: indexMillion},
			{Name: "visible", Run: indexVisible},
			{Name: "fanout", Run: indexFanout},
			{Name: "herd", Run: indexHerd},
		},
	}
}

// published is a log with a population, and what was published.
type published struct {
	log    *harness.Child
	source *harness.Child
	nats   string
	lists  string // the file of full pods, when it was asked for
	info   system.SourceInfo
	name   string // of the collection
}

// publishInto publishes a population into a log of its own.
func publishInto(ctx context.Context, b *harness.Bench, name string, cfg system.SourceConfig) (*published, error) {
	log, url, err := system.StartLog(ctx, b, name)
	if err != nil {
		return nil, err
	}
	cfg.NATS, cfg.Seed = url, b.Seed
	r := &published{log: log, nats: url, lists: cfg.Lists, name: cfg.Collection().String()}
	if r.source, err = b.Spawn(ctx, "source", harness.Place{}, cfg, &r.info); err != nil {
		return nil, errors.Join(err, log.Stop())
	}
	b.Note("%s: %d objects of %d templates, seed %d, %d bytes each, published in %.1f s; log: a process of its own, 1 replica, file storage, default sync",
		name, r.info.Objects, cfg.Templates, b.Seed, r.info.PayloadMean, r.info.Took.Seconds())
	return r, nil
}

func (r *published) close() error { return errors.Join(r.source.Stop(), r.log.Stop()) }

// replica starts an indexer on the rig's log.
func (r *published) replica(ctx context.Context, b *harness.Bench, at harness.Place, tier indexer.Tier) (*system.Replica, error) {
	return system.SpawnReplica(ctx, b, at, system.ReplicaConfig{NATS: r.nats, Collection: r.name, Tier: tier})
}

// verify compares an indexer with the source.
func (r *published) verify(ctx context.Context, x *system.Replica) error {
	var want string
	if err := r.source.Call("hash", nil, &want); err != nil {
		return err
	}
	return system.VerifyIndex(ctx, x.Conns, r.name, want)
}
