package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexPods measures what it takes to hold many pods under five indexes: time
// and memory of the cold sync, the restart from a snapshot file, what is live
// afterwards, and what a collection of it costs. Beside it stands a client-go
// informer with the same five indexes on the same pods, as an API server sends
// them. Every holder is a fresh process.
func indexPods(ctx context.Context, b *bench) (err error) {
	r, err := publishInto(ctx, b, "pods", sourceConfig{
		Objects: pick(b, 9990, 100_020), Templates: pick(b, 500, 600), Lists: b.pathIn("pods.list"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var url string
	api, err := b.spawn(ctx, "api", place{}, r.lists, &url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.stop()) }()
	b.note("pods: %d bytes each in JSON as published, %d with the managed fields that client-go gets (in protobuf)", r.info.PayloadMean, r.info.FullMean)
	h := &holders{b: b, rig: r, api: api}
	if err := h.prepare(ctx); err != nil {
		return err
	}
	sides := []side{
		h.ours("raw", replicaConfig{Tier: indexer.TierRaw}),
		h.theirs("informer", cacheConfig{URL: url}),
		h.theirs("stripped", cacheConfig{URL: url, Strip: true}),
		h.ours("compact", replicaConfig{Tier: indexer.TierCompact}),
		h.ours("warm", replicaConfig{Tier: indexer.TierRaw, DataDir: h.dataDir()}),
	}
	if b.quick {
		b.leaveOut("targets of memory, cold sync and collection", "they hold for 100 k pods; of 10 k the fixed part of a process is too large a part")
		b.leaveOut("an informer that is sent the pods one by one (watch-list)", "--quick")
	} else {
		sides = append(sides, h.theirs("streamed", cacheConfig{URL: url + streamingPrefix}))
	}
	t, err := interleave(ctx, b, plan{what: "pods", rounds: pick(b, 1, 3), cold: true}, sides...)
	if err != nil {
		return err
	}
	b.note("pods: a turn is one load, whatever its length; every indexer ended with the source's state hash, every informer with its keys and versions")
	h.add(t)
	return nil
}

// holders are the processes that take turns at holding the pods.
type holders struct {
	b   *bench
	rig *published
	api *child
}

// dataDir is where the snapshot file is.
func (h *holders) dataDir() string { return h.b.pathIn("warm") }

// prepare declares the index of images, which stays declared, and writes the
// first snapshot file.
func (h *holders) prepare(ctx context.Context) error {
	cfg := replicaConfig{NATS: h.rig.nats, Collection: h.rig.name, Tier: indexer.TierRaw, DataDir: h.dataDir()}
	x, err := spawnReplica(ctx, h.b, place{}, cfg)
	if err != nil {
		return err
	}
	if err := x.await(ctx, h.rig.info.Objects); err != nil {
		return errors.Join(err, x.close())
	}
	took, err := x.declare(ctx)
	if err == nil {
		h.b.add(alone(fmt.Sprintf("AddIndexers on %d live pods, until it answers, raw tier", h.rig.info.Objects), "s", []float64{took.Seconds()}, nil))
	}
	return errors.Join(err, x.close())
}

// ours is a turn of an indexer.
func (h *holders) ours(name string, cfg replicaConfig) side {
	cfg.NATS, cfg.Collection = h.rig.nats, h.rig.name
	return side{name, func(ctx context.Context, _ time.Duration) (_ map[string]float64, err error) {
		x, err := readyReplica(ctx, h.b, place{}, cfg)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, x.close()) }()
		m, err := beginMeasurement(h.b, x.child, h.rig.log, h.rig.info.Objects*heldPerPod)
		if err != nil {
			return nil, err
		}
		if err := x.sync(ctx, h.b, name, h.rig.info.Objects); err != nil {
			return nil, err
		}
		m.note("seconds", time.Since(m.began).Seconds())
		if err := m.synced(); err != nil {
			return nil, err
		}
		got, err := x.status(ctx)
		if err != nil {
			return nil, err
		}
		if cfg.DataDir != "" && !got.GetWarmStart() {
			return nil, errors.New("the indexer did not start from its snapshot file")
		}
		if cfg.Tier == indexer.TierCompact {
			var took time.Duration
			if took, got, err = x.compacted(ctx, m.began, pick(h.b, time.Second, 2*time.Second)); err != nil {
				return nil, err
			}
			m.note("compacted", took.Seconds())
		}
		if err := errors.Join(x.hasIndexes(ctx, 5), m.settled(h.rig.info.Objects)); err != nil {
			return nil, err
		}
		m.note("stored", float64(got.GetStoredBytes())/float64(h.rig.info.Objects))
		m.note("estimate", float64(got.GetMemoryBytes())/float64(h.rig.info.Objects))
		return m.numbers, errors.Join(h.b.heapProfiled(x.child, name), h.rig.verify(ctx, x))
	}}
}

// theirs is a turn of a client-go informer.
func (h *holders) theirs(name string, cfg cacheConfig) side {
	return side{name, func(ctx context.Context, _ time.Duration) (_ map[string]float64, err error) {
		c, err := h.b.spawn(ctx, "cache", place{}, cfg, nil)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.stop()) }()
		m, err := beginMeasurement(h.b, c, h.api, h.rig.info.Objects*heldPerPod)
		if err != nil {
			return nil, err
		}
		var got informerResult
		if err := h.b.profiled(c, "sync-"+name, func() error { return c.call("load", h.rig.info.Objects, &got) }); err != nil {
			return nil, err
		}
		m.note("seconds", got.Took.Seconds())
		if err := errors.Join(m.synced(), m.settled(h.rig.info.Objects)); err != nil {
			return nil, err
		}
		var versions string
		if err := errors.Join(h.b.heapProfiled(c, name), c.call("hash", nil, &versions)); err != nil {
			return nil, err
		}
		if versions != h.rig.info.Versions {
			return nil, fmt.Errorf("the informer holds other keys or versions: %s, want %s", versions, h.rig.info.Versions)
		}
		return m.numbers, nil
	}}
}

// measurement is one load by a holder. The other end is who sends the pods.
type measurement struct {
	child, other *child
	empty        heap
	cpu, far     time.Duration // of both before the load
	began        time.Time
	numbers      map[string]float64
}

// beginMeasurement begins one of a load whose objects take no more bytes of
// memory than held.
func beginMeasurement(b *bench, c, other *child, held int) (*measurement, error) {
	b.memory.get(heldEmpty + int64(held))
	m := &measurement{child: c, other: other, numbers: map[string]float64{}}
	mine, err := c.usage()
	if err != nil {
		return nil, err
	}
	theirs, err := other.usage()
	if err != nil {
		return nil, err
	}
	if err := c.call("heap", nil, &m.empty); err != nil {
		return nil, err
	}
	m.cpu, m.far, m.began = mine.CPU, theirs.CPU, time.Now()
	return m, nil
}

func (m *measurement) note(name string, v float64) { m.numbers[name] = v }

// synced notes what the load has cost.
func (m *measurement) synced() error {
	mine, err := m.child.usage()
	if err != nil {
		return err
	}
	theirs, err := m.other.usage()
	m.note("cpu", (mine.CPU - m.cpu).Seconds())
	m.note("far", (theirs.CPU - m.far).Seconds())
	return err
}

// settled notes what is held, per object, and what a collection of it costs.
func (m *measurement) settled(objects int) error {
	var after heap
	if err := m.child.call("heap", nil, &after); err != nil {
		return err
	}
	n := float64(objects)
	m.note("peak", float64(after.PeakRSS)/1e6)
	m.note("live", float64(after.Live-m.empty.Live)/n)
	m.note("rss", float64(after.RSS-m.empty.RSS)/n)
	m.note("objects", float64(after.Objects-m.empty.Objects)/n)
	var cost collectionCost
	err := m.child.call("collect", nil, &cost)
	m.note("gc", cost.CPU.Seconds()*1e3)
	m.note("gc-wall", cost.Wall.Seconds()*1e3)
	return err
}
