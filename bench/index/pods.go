package index

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexPods measures what it takes to hold many pods under five indexes: time
// and memory of the cold sync, the restart from a snapshot file, what is live
// afterwards, and what a collection of it costs. Beside it stands a client-go
// informer with the same five indexes on the same pods, as an API server sends
// them. Every holder is a fresh process.
func indexPods(ctx context.Context, b *harness.Bench) (err error) {
	r, err := publishInto(ctx, b, "pods", system.SourceConfig{
		Objects: harness.Pick(b, 9990, 100_020), Templates: harness.Pick(b, 500, 600), Lists: b.PathIn("pods.list"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var url string
	api, err := b.Spawn(ctx, "api", harness.Place{}, r.lists, &url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Stop()) }()
	b.Note("pods: %d bytes each in JSON as published, %d with the managed fields that client-go gets (in protobuf)", r.info.PayloadMean, r.info.FullMean)
	h := &holders{b: b, rig: r, api: api}
	if err := h.prepare(ctx); err != nil {
		return err
	}
	sides := []harness.Side{
		h.ours("raw", system.ReplicaConfig{Tier: indexer.TierRaw}),
		h.theirs("informer", system.CacheConfig{URL: url}),
		h.theirs("stripped", system.CacheConfig{URL: url, Strip: true}),
		h.ours("compact", system.ReplicaConfig{Tier: indexer.TierCompact}),
		h.ours("warm", system.ReplicaConfig{Tier: indexer.TierRaw, DataDir: h.dataDir()}),
	}
	if b.Quick {
		b.LeaveOut("targets of memory, cold sync and collection", "they hold for 100 k pods; of 10 k the fixed part of a process is too large a part")
		b.LeaveOut("an informer that is sent the pods one by one (watch-list)", "--quick")
	} else {
		sides = append(sides, h.theirs("streamed", system.CacheConfig{URL: url + system.StreamingPrefix}))
	}
	t, err := harness.Interleave(ctx, b, harness.Plan{What: "pods", Rounds: harness.Pick(b, 1, 3), Cold: true}, sides...)
	if err != nil {
		return err
	}
	b.Note("pods: a turn is one load, whatever its length; every indexer ended with the source's state hash, every informer with its keys and versions")
	h.add(t)
	return nil
}

// holders are the processes that take turns at holding the pods.
type holders struct {
	b   *harness.Bench
	rig *published
	api *harness.Child
}

// dataDir is where the snapshot file is.
func (h *holders) dataDir() string { return h.b.PathIn("warm") }

// prepare declares the index of images, which stays declared, and writes the
// first snapshot file.
func (h *holders) prepare(ctx context.Context) error {
	cfg := system.ReplicaConfig{NATS: h.rig.nats, Collection: h.rig.name, Tier: indexer.TierRaw, DataDir: h.dataDir()}
	x, err := system.SpawnReplica(ctx, h.b, harness.Place{}, cfg)
	if err != nil {
		return err
	}
	if err := x.Await(ctx, h.rig.info.Objects); err != nil {
		return errors.Join(err, x.Close())
	}
	took, err := x.Declare(ctx)
	if err == nil {
		h.b.Add(harness.Alone(fmt.Sprintf("AddIndexers on %d live pods, until it answers, raw tier", h.rig.info.Objects), "s", []float64{took.Seconds()}, nil))
	}
	return errors.Join(err, x.Close())
}

// ours is a turn of an indexer.
func (h *holders) ours(name string, cfg system.ReplicaConfig) harness.Side {
	cfg.NATS, cfg.Collection = h.rig.nats, h.rig.name
	return harness.Side{Name: name, Run: func(ctx context.Context, _ time.Duration) (_ map[string]float64, err error) {
		x, err := system.ReadyReplica(ctx, h.b, harness.Place{}, cfg)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, x.Close()) }()
		m, err := system.BeginMeasurement(h.b, x.Child, h.rig.log, h.rig.info.Objects*harness.HeldPerPod)
		if err != nil {
			return nil, err
		}
		if err := x.Sync(ctx, h.b, name, h.rig.info.Objects); err != nil {
			return nil, err
		}
		m.Note("seconds", time.Since(m.Began).Seconds())
		if err := m.Synced(); err != nil {
			return nil, err
		}
		got, err := x.Status(ctx)
		if err != nil {
			return nil, err
		}
		if cfg.DataDir != "" && !got.GetWarmStart() {
			return nil, errors.New("the indexer did not start from its snapshot file")
		}
		if cfg.Tier == indexer.TierCompact {
			var took time.Duration
			if took, got, err = x.Compacted(ctx, m.Began, harness.Pick(h.b, time.Second, 2*time.Second)); err != nil {
				return nil, err
			}
			m.Note("compacted", took.Seconds())
		}
		if err := errors.Join(x.HasIndexes(ctx, 5), m.Settled(h.rig.info.Objects)); err != nil {
			return nil, err
		}
		m.Note("stored", float64(got.GetStoredBytes())/float64(h.rig.info.Objects))
		m.Note("estimate", float64(got.GetMemoryBytes())/float64(h.rig.info.Objects))
		return m.Numbers, errors.Join(h.b.HeapProfiled(x.Child, name), h.rig.verify(ctx, x))
	}}
}

// theirs is a turn of a client-go informer.
func (h *holders) theirs(name string, cfg system.CacheConfig) harness.Side {
	return harness.Side{Name: name, Run: func(ctx context.Context, _ time.Duration) (_ map[string]float64, err error) {
		c, err := h.b.Spawn(ctx, "cache", harness.Place{}, cfg, nil)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.Stop()) }()
		m, err := system.BeginMeasurement(h.b, c, h.api, h.rig.info.Objects*harness.HeldPerPod)
		if err != nil {
			return nil, err
		}
		var got system.InformerResult
		if err := h.b.Profiled(c, "sync-"+name, func() error { return c.Call("load", h.rig.info.Objects, &got) }); err != nil {
			return nil, err
		}
		m.Note("seconds", got.Took.Seconds())
		if err := errors.Join(m.Synced(), m.Settled(h.rig.info.Objects)); err != nil {
			return nil, err
		}
		var versions string
		if err := errors.Join(h.b.HeapProfiled(c, name), c.Call("hash", nil, &versions)); err != nil {
			return nil, err
		}
		if versions != h.rig.info.Versions {
			return nil, fmt.Errorf("the informer holds other keys or versions: %s, want %s", versions, h.rig.info.Versions)
		}
		return m.Numbers, nil
	}}
}
