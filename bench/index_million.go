package main

import (
	"context"
	"errors"
	"time"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// fewObjects is the collection beside which a million objects are read.
const fewObjects = 9990

// lookupsInFlight is how many lookups are in flight at a time when their latency is measured.
const lookupsInFlight = 4

// indexMillion measures how long a million small objects take from the log until
// they can be read, and what lookups among them take beside lookups among few.
func indexMillion(ctx context.Context, b *bench) (err error) {
	if b.quick {
		b.leaveOut("a million small objects", "--quick")
		return nil
	}
	few, err := publishInto(ctx, b, "few", sourceConfig{Objects: fewObjects})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, few.close()) }()
	many, err := publishInto(ctx, b, "million", sourceConfig{Objects: 1_000_020})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, many.close()) }()
	small, err := syncedReplica(ctx, b, few)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, small.close()) }()
	large, err := readyReplica(ctx, b, place{}, replicaConfig{NATS: many.nats, Collection: many.name, Tier: indexer.TierRaw})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, large.close()) }()
	m, err := beginMeasurement(b, large.child, many.log, many.info.Objects*heldPerSmall)
	if err != nil {
		return err
	}
	if err := large.sync(ctx, b, "million", many.info.Objects); err != nil {
		return err
	}
	m.note("seconds", time.Since(m.began).Seconds())
	if err := errors.Join(m.synced(), m.settled(many.info.Objects), b.heapProfiled(large.child, "million")); err != nil {
		return err
	}
	number := func(name string) []float64 { return []float64{m.numbers[name]} }
	f := alone("cold sync of 1 M small objects, raw tier", "s", number("seconds"), atMost("ours", 15))
	f = f.with("CPU", "s", number("cpu")).with("log's", "s", number("far")).with("peak RSS", "MB", number("peak"))
	b.add(f.with("live heap per object", "B", number("live")).with("a full GC, CPU", "ms", number("gc")))
	t, err := interleave(ctx, b, b.plan("million", 2, 7, 500*time.Millisecond, 2*time.Second),
		lookups("few", small, few.info), lookups("many", large, many.info))
	if err != nil {
		return err
	}
	f = compare("ByIndex, 30 hits, keys only, 1 M small objects, raw tier, p99", "us", t.of("many", "p99"), "10 k objects", t.of("few", "p99"), atMost("ratio", 2))
	f = f.with("p50", "us", t.of("many", "p50")).with("beside", "us", t.of("few", "p50"))
	b.add(f.with("server CPU", "us", t.of("many", "cpu")).with("beside", "us", t.of("few", "cpu")))
	return errors.Join(few.verify(ctx, small), many.verify(ctx, large))
}

// syncedReplica starts an indexer of the raw tier and waits until it holds everything.
func syncedReplica(ctx context.Context, b *bench, r *published) (*replica, error) {
	x, err := r.replica(ctx, b, place{}, indexer.TierRaw)
	if err != nil {
		return nil, err
	}
	if err := x.await(ctx, r.info.Objects); err != nil {
		return nil, errors.Join(err, x.close())
	}
	return x, nil
}

// lookups is a side of lookups by owner.
func lookups(name string, x *replica, info sourceInfo) side {
	var asked []*wire
	for _, owner := range info.Values {
		asked = append(asked, encoded(&indexv1.ByIndexRequest{
			Collection: x.collection, Index: "owner", Values: []string{owner}, View: indexv1.View_VIEW_KEYS,
		}))
	}
	return side{name, func(ctx context.Context, d time.Duration) (map[string]float64, error) {
		return cpuPerCall(ctx, x.child, d, lookupsInFlight, caller{x.conns, indexv1.IndexService_ByIndex_FullMethodName, asked})
	}}
}
