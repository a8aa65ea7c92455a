package slice

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
)

// deltaVisible measures the time from handing a delta to the log until a client
// of the index sees it. Publisher, log, indexer and clients are one process, so
// there is one clock; the clients still use gRPC over TCP.
func deltaVisible(ctx context.Context, b *harness.Bench) (err error) {
	cfg := system.IndexServerConfig{Dir: filepath.Join(b.Dir, "delta"), Seed: b.Seed, Pods: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)}
	server, err := b.Spawn(ctx, "delta", harness.Place{}, cfg, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	published := 0.
	t, err := harness.Interleave(ctx, b, b.Plan("delta", 2, 5, 1500*time.Millisecond, 10*time.Second), harness.Side{
		Name: "delta", Run: func(_ context.Context, d time.Duration) (map[string]float64, error) {
			var got map[string]float64
			err := b.Profiled(server, "delta", func() error { return server.Call("run", d, &got) })
			published += got["published"]
			return got, err
		},
	})
	if err != nil {
		return err
	}
	b.Note("delta: %d/s open loop, 5 KB each, %.0f in all, each seen once and in order; log: 1 replica, file storage, default sync; Get: a sample of 20/s polls without pause", system.DeltasPerSecond, published)
	for _, q := range []string{"p50", "p99"} {
		b.Add(harness.Compare("delta published -> in a client's Get, "+q, "ms", t.Of("delta", "get-"+q), "bare log reader "+q, t.Of("delta", "log-"+q), nil))
		b.Add(harness.Compare("delta published -> in a client's Watch, "+q, "ms", t.Of("delta", "watch-"+q), "bare log reader "+q, t.Of("delta", "log-"+q), nil))
	}
	return nil
}

// DeltaServer is the servant that publishes deltas and watches them arrive.
func DeltaServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg system.IndexServerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	x, err := system.StartIndexer(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	s, err := system.NewDeltaSource(ctx, x.Conn, x.Addr, cfg)
	if err != nil {
		return nil, errors.Join(err, x.Stop())
	}
	return s.Servant(x.Stop), nil
}
