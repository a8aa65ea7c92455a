package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexVisible measures the time from handing a delta to the log until a client
// of the index sees it. Log and indexer are processes of their own; publisher and
// clients share one, and so a clock.
func indexVisible(ctx context.Context, b *bench) (err error) {
	log, url, err := b.startLog(ctx, "visible")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.stop()) }()
	x, err := b.startReplica(ctx, place{}, replicaConfig{NATS: url, Collection: podsCollection.String(), Tier: indexer.TierRaw})
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
	t, err := interleave(ctx, b, b.plan("visible", 2, 5, time.Second, 6*time.Second), side{
		"delta", func(_ context.Context, d time.Duration) (got map[string]float64, err error) {
			err = b.profiled(x.child, "visible", func() error { return source.call("run", d, &got) })
			published += got["published"]
			return got, err
		},
	})
	if err != nil {
		return err
	}
	b.note("visible: %d/s open loop, 5 KB each, %.0f in all, each seen once and in order; log: a process of its own, 1 replica, file storage, default sync; Get: a sample of 20/s polls without pause", deltasPerSecond, published)
	for _, q := range []struct {
		name  string
		limit float64
	}{{"p50", 0.3}, {"p99", 1.5}} {
		b.add(compare("delta published -> in a client's Watch, raw tier, "+q.name, "ms", t.of("delta", "watch-"+q.name), "bare log reader", t.of("delta", "log-"+q.name), atMost("ours", q.limit)))
		b.add(compare("delta published -> in a client's Get, raw tier, "+q.name, "ms", t.of("delta", "get-"+q.name), "bare log reader", t.of("delta", "log-"+q.name), nil))
	}
	var want string
	if err := source.call("hash", nil, &want); err != nil {
		return err
	}
	return verifyIndex(ctx, x.conns, x.collection, want)
}

// visibleConfig is a population, and the log and the indexer it is published to.
type visibleConfig struct {
	indexServerConfig

	NATS  string `json:"nats"`
	Index string `json:"index"`
}

// visibleServer is the servant that publishes deltas and watches them arrive.
func visibleServer(ctx context.Context, raw json.RawMessage) (*servant, error) {
	var cfg visibleConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
	if err != nil {
		return nil, err
	}
	s, err := newDeltaSource(ctx, conn, cfg.Index, cfg.indexServerConfig)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s.servant(func() error { conn.Close(); return nil }), nil
}
