package main

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/services/indexer"
)

// visibleConfig is a population, and the log and the indexer it is published to.
type visibleConfig struct {
	indexServerConfig

	NATS  string `json:"nats"`
	Index string `json:"index"`
}

// indexVisible measures how long a delta is under way, stretch by stretch. Log
// and indexer are processes of their own; publisher and client share one. All of
// them read one machine's clock. The kinds of readers take turns.
func indexVisible(ctx context.Context, b *bench) (err error) {
	log, url, err := startLog(ctx, b, "visible")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.stop()) }()
	x, err := spawnReplica(ctx, b, place{}, replicaConfig{NATS: url, Collection: podsCollection.String(), Tier: indexer.TierRaw})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	cfg := visibleConfig{NATS: url, Index: x.addr}
	cfg.Seed, cfg.Pods, cfg.Templates = b.seed, pick(b, 3000, 9990), pick(b, 500, 600)
	source, err := b.spawn(ctx, "visible", place{}, cfg, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.stop()) }()
	published := 0.
	turn := func(reader string) side {
		return side{reader, func(_ context.Context, d time.Duration) (got map[string]float64, err error) {
			if err := x.call("visible", nil, nil); err != nil { // forget what was before
				return nil, err
			}
			if err := b.profiled(x.child, "visible-"+reader, func() error {
				return source.call("run", liveArgs{Reader: reader, For: d}, &got)
			}); err != nil {
				return nil, err
			}
			var visible map[string]float64
			err = x.call("visible", nil, &visible)
			got["visible-p50"], got["visible-p99"] = visible["p50"], visible["p99"]
			published += got["published"]
			return got, err
		}}
	}
	t, err := interleave(ctx, b, b.plan("visible", 2, 5, 700*time.Millisecond, 3*time.Second), turn("watch"), turn("log"), turn("core"), turn("get"))
	if err != nil {
		return err
	}
	b.note("visible: %d/s open loop, 5 KB each, %.0f in all, each seen once and in order; log: a process of its own, 1 replica, file storage, default sync; Get: a sample of 20/s polls without pause", deltasPerSecond, published)
	for _, q := range []struct {
		name  string
		limit float64
	}{{"p50", 0.3}, {"p99", 1.5}} {
		stretch := func(from, to string) string { return "delta " + from + " -> " + to + ", " + q.name }
		of := func(side, number string) []float64 { return t.of(side, number+"-"+q.name) }
		b.add(alone(stretch("stored in the log", "visible to queries")+", raw tier", "ms", of("watch", "visible"), atMost("ours", q.limit)))
		b.add(compare(stretch("stored in the log", "in a client's Watch")+", raw tier", "ms", of("watch", "stored-seen"), "bare log reader", of("log", "stored-seen"), nil))
		b.add(alone(stretch("sent", "stored in the log"), "ms", of("watch", "sent-stored"), nil))
		b.add(compare(stretch("sent", "in a client's Watch")+", raw tier", "ms", of("watch", "sent-seen"), "bare log reader", of("log", "sent-seen"), nil))
		b.add(compare(stretch("sent", "in a client's Get")+", raw tier", "ms", of("get", "sent-seen"), "bare log reader", of("log", "sent-seen"), nil))
		b.add(alone(stretch("sent", "at a subscriber of NATS without a log"), "ms", of("core", "sent-seen"), nil))
	}
	var want string
	if err := source.call("hash", nil, &want); err != nil {
		return err
	}
	return verifyIndex(ctx, x.conns, x.collection, want)
}
