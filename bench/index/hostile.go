package index

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexHostile measures what strangers do to a server that limits its callers: what it holds after
// minutes of their input, and how long a known caller's lookups take meanwhile. Run it with --tls.
func indexHostile(ctx context.Context, b *harness.Bench) (err error) {
	r, err := publishInto(ctx, b, "hostile", system.SourceConfig{Objects: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	who, err := writeAccess(b)
	if err != nil {
		return err
	}
	who.NATS, who.Collection, who.Tier = r.nats, r.name, indexer.TierRaw
	x, err := system.SpawnReplica(ctx, b, harness.Place{}, who)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.Await(ctx, r.info.Objects); err != nil {
		return err
	}
	prober, err := b.Spawn(ctx, "prober", harness.Place{}, proberConfig{Addr: x.Addr, Values: r.info.Values, Token: who.Token}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prober.Stop()) }()
	quiet, err := probedDuring(ctx, prober, func(ctx context.Context) error {
		return harness.Sleep(ctx, harness.Pick(b, time.Second, 20*time.Second))
	})
	if err != nil {
		return err
	}
	var before, after harness.Heap
	if err := x.Call("heap", nil, &before); err != nil {
		return err
	}
	counts := make([]int64, len(load.Attacks))
	busy, err := probedDuring(ctx, prober, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, harness.Pick(b, 5*time.Second, 10*time.Minute))
		defer cancel()
		counts = load.Attack(ctx, x.Addr)
		return nil
	})
	if err != nil {
		return err
	}
	for i, a := range load.Attacks {
		if counts[i] == 0 {
			return errors.New("hostile: " + a.Name + " reached nobody")
		}
		b.Note("hostile: %d times %s", counts[i], a.Name)
	}
	if err := x.Call("heap", nil, &after); err != nil {
		return err
	}
	ms := func(d time.Duration) []float64 { return []float64{d.Seconds() * 1e3} }
	b.Add(harness.Compare("ByIndex, 30 hits, of a known caller beside strangers, p99", "ms", ms(busy.P99), "without them", ms(quiet.P99), harness.AtMost("ratio", 3)))
	b.Add(harness.Alone("RSS after strangers have gone, less that before they came", "MB", []float64{float64(after.RSS-before.RSS) / 1e6}, harness.AtMost("ours", 64)).
		With("peak RSS, less that before", "MB", []float64{float64(after.PeakRSS-before.RSS) / 1e6}))
	return r.verify(ctx, x)
}
