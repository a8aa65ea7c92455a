package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexFamily holds the figures of the indexer: what reads cost beside echoes
// and how long they take under load, what a pod costs in memory and in time
// beside a client-go informer, how soon changes are seen, and how many watchers
// a core feeds.
func indexFamily() family {
	return family{
		name:  "index",
		about: "reads and query streams beside echoes, latency under load, memory and cold sync beside a client-go informer, watches",
		parts: []part{
			{"reads", indexCalls},
			{"latency", indexLatency},
			{"pods", indexPods},
			{"million", indexMillion},
			{"visible", indexVisible},
			{"fanout", indexFanout},
			{"herd", indexHerd},
		},
	}
}

// published is a log with a population, and what was published.
type published struct {
	log    *child
	source *child
	nats   string
	lists  string // the file of full pods, when it was asked for
	info   sourceInfo
	name   string // of the collection
}

// publishInto publishes a population into a log of its own.
func publishInto(ctx context.Context, b *bench, name string, cfg sourceConfig) (*published, error) {
	log, url, err := startLog(ctx, b, name)
	if err != nil {
		return nil, err
	}
	cfg.NATS, cfg.Seed = url, b.seed
	r := &published{log: log, nats: url, lists: cfg.Lists, name: cfg.collection().String()}
	if r.source, err = b.spawn(ctx, "source", place{}, cfg, &r.info); err != nil {
		return nil, errors.Join(err, log.stop())
	}
	b.note("%s: %d objects of %d templates, seed %d, %d bytes each, published in %.1f s; log: a process of its own, 1 replica, file storage, default sync",
		name, r.info.Objects, cfg.Templates, b.seed, r.info.PayloadMean, r.info.Took.Seconds())
	return r, nil
}

func (r *published) close() error { return errors.Join(r.source.stop(), r.log.stop()) }

// replica starts an indexer on the rig's log.
func (r *published) replica(ctx context.Context, b *bench, at place, tier indexer.Tier) (*replica, error) {
	return spawnReplica(ctx, b, at, replicaConfig{NATS: r.nats, Collection: r.name, Tier: tier})
}

// verify compares an indexer with the source.
func (r *published) verify(ctx context.Context, x *replica) error {
	var want string
	if err := r.source.call("hash", nil, &want); err != nil {
		return err
	}
	return verifyIndex(ctx, x.conns, r.name, want)
}

// pathIn is a file in the scratch folder of the run.
func (b *bench) pathIn(name string) string { return filepath.Join(b.dir, name) }
