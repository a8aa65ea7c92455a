package index

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// visibleConfig is a population, and the log and the indexer it is published to.
type visibleConfig struct {
	system.IndexServerConfig

	NATS  string `json:"nats"`
	Index string `json:"index"`
}

// indexVisible measures how long a delta is under way, stretch by stretch. Log
// and indexer are processes of their own; publisher and client share one. All of
// them read one machine's clock. The kinds of readers take turns.
func indexVisible(ctx context.Context, b *harness.Bench) (err error) {
	log, url, err := system.StartLog(ctx, b, "visible")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Stop()) }()
	x, err := system.SpawnReplica(ctx, b, harness.Place{}, system.ReplicaConfig{NATS: url, Collection: population.PodsCollection.String(), Tier: indexer.TierRaw})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	cfg := visibleConfig{NATS: url, Index: x.Addr}
	cfg.Seed, cfg.Pods, cfg.Templates = b.Seed, harness.Pick(b, 3000, 9990), harness.Pick(b, 500, 600)
	source, err := b.Spawn(ctx, "visible", harness.Place{}, cfg, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Stop()) }()
	published := 0.
	turn := func(reader string) harness.Side {
		return harness.Side{Name: reader, Run: func(_ context.Context, d time.Duration) (got map[string]float64, err error) {
			if err := x.Call("visible", nil, nil); err != nil { // forget what was before
				return nil, err
			}
			if err := b.Profiled(x.Child, "visible-"+reader, func() error {
				return source.Call("run", liveArgs{Reader: reader, For: d}, &got)
			}); err != nil {
				return nil, err
			}
			var visible map[string]float64
			err = x.Call("visible", nil, &visible)
			got["visible-p50"], got["visible-p99"] = visible["p50"], visible["p99"]
			published += got["published"]
			return got, err
		}}
	}
	t, err := harness.Interleave(ctx, b, b.Plan("visible", 2, 5, 700*time.Millisecond, 3*time.Second), turn("watch"), turn("log"), turn("core"), turn("get"))
	if err != nil {
		return err
	}
	b.Note("visible: %d/s open loop, 5 KB each, %.0f in all, each seen once and in order; log: a process of its own, 1 replica, file storage, default sync; Get: a sample of 20/s polls without pause", system.DeltasPerSecond, published)
	for _, q := range []struct {
		name  string
		limit float64
	}{{"p50", 0.3}, {"p99", 1.5}} {
		stretch := func(from, to string) string { return "delta " + from + " -> " + to + ", " + q.name }
		of := func(side, number string) []float64 { return t.Of(side, number+"-"+q.name) }
		b.Add(harness.Alone(stretch("stored in the log", "visible to queries")+", raw tier", "ms", of("watch", "visible"), harness.AtMost("ours", q.limit)))
		b.Add(harness.Compare(stretch("stored in the log", "in a client's Watch")+", raw tier", "ms", of("watch", "stored-seen"), "bare log reader", of("log", "stored-seen"), nil))
		b.Add(harness.Alone(stretch("sent", "stored in the log"), "ms", of("watch", "sent-stored"), nil))
		b.Add(harness.Compare(stretch("sent", "in a client's Watch")+", raw tier", "ms", of("watch", "sent-seen"), "bare log reader", of("log", "sent-seen"), nil))
		b.Add(harness.Compare(stretch("sent", "in a client's Get")+", raw tier", "ms", of("get", "sent-seen"), "bare log reader", of("log", "sent-seen"), nil))
		b.Add(harness.Alone(stretch("sent", "at a subscriber of NATS without a log"), "ms", of("core", "sent-seen"), nil))
	}
	var want string
	if err := source.Call("hash", nil, &want); err != nil {
		return err
	}
	return system.VerifyIndex(ctx, x.Conns, x.Collection, want)
}
