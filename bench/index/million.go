package index

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// fewObjects is the collection beside which a million objects are read.
const fewObjects = 9990

// lookupsInFlight is how many lookups are in flight at a time when their latency is measured.
const lookupsInFlight = 4

// indexMillion measures how long a million small objects take from the log until
// they can be read, and what lookups among them take beside lookups among few.
func indexMillion(ctx context.Context, b *harness.Bench) (err error) {
	if b.Quick {
		b.LeaveOut("a million small objects", "--quick")
		return nil
	}
	few, err := publishInto(ctx, b, "few", system.SourceConfig{Objects: fewObjects})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, few.close()) }()
	many, err := publishInto(ctx, b, "million", system.SourceConfig{Objects: 1_000_020})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, many.close()) }()
	small, err := syncedReplica(ctx, b, few)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, small.Close()) }()
	large, err := system.ReadyReplica(ctx, b, harness.Place{}, system.ReplicaConfig{NATS: many.nats, Collection: many.name, Tier: indexer.TierRaw})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, large.Close()) }()
	m, err := system.BeginMeasurement(b, large.Child, many.log, many.info.Objects*harness.HeldPerSmall)
	if err != nil {
		return err
	}
	if err := large.Sync(ctx, b, "million", many.info.Objects); err != nil {
		return err
	}
	m.Note("seconds", time.Since(m.Began).Seconds())
	if err := errors.Join(m.Synced(), m.Settled(many.info.Objects), b.HeapProfiled(large.Child, "million")); err != nil {
		return err
	}
	number := func(name string) []float64 { return []float64{m.Numbers[name]} }
	f := harness.Alone("cold sync of 1 M small objects, raw tier", "s", number("seconds"), harness.AtMost("ours", 15))
	f = f.With("CPU", "s", number("cpu")).With("log's", "s", number("far")).With("peak RSS", "MB", number("peak"))
	b.Add(f.With("live heap per object", "B", number("live")).With("a full GC, CPU", "ms", number("gc")))
	t, err := harness.Interleave(ctx, b, b.Plan("million", 2, 7, 500*time.Millisecond, 2*time.Second),
		lookups("few", small, few.info), lookups("many", large, many.info))
	if err != nil {
		return err
	}
	f = harness.Compare("ByIndex, 30 hits, keys only, 1 M small objects, raw tier, p99", "us", t.Of("many", "p99"), "10 k objects", t.Of("few", "p99"), harness.AtMost("ratio", 2))
	f = f.With("p50", "us", t.Of("many", "p50")).With("beside", "us", t.Of("few", "p50"))
	b.Add(f.With("server CPU", "us", t.Of("many", "cpu")).With("beside", "us", t.Of("few", "cpu")))
	return errors.Join(few.verify(ctx, small), many.verify(ctx, large))
}

// syncedReplica starts an indexer of the raw tier and waits until it holds everything.
func syncedReplica(ctx context.Context, b *harness.Bench, r *published) (*system.Replica, error) {
	x, err := r.replica(ctx, b, harness.Place{}, indexer.TierRaw)
	if err != nil {
		return nil, err
	}
	if err := x.Await(ctx, r.info.Objects); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

// lookups is a side of lookups by owner.
func lookups(name string, x *system.Replica, info system.SourceInfo) harness.Side {
	var asked []*load.Wire
	for _, owner := range info.Values {
		asked = append(asked, system.Encoded(&indexv1.ByIndexRequest{
			Collection: x.Collection, Index: "owner", Values: []string{owner}, View: indexv1.View_VIEW_KEYS,
		}))
	}
	return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
		return load.CPUPerCall(ctx, x.Child, d, lookupsInFlight, load.Caller{Pool: x.Conns, Method: indexv1.IndexService_ByIndex_FullMethodName, Requests: asked})
	}}
}
