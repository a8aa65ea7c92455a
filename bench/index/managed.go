package index

import (
	"context"
	"errors"
	"fmt"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// indexManaged measures what a pod takes with its managed fields, which a reflection leaves out
// unless its spec keeps them, beside the same pods without.
func indexManaged(ctx context.Context, b *harness.Bench) (err error) {
	var sides []harness.Side
	var objects int
	for _, managed := range []bool{true, false} {
		name := map[bool]string{true: "managed", false: "bare"}[managed]
		r, err := publishInto(ctx, b, name, system.SourceConfig{Objects: harness.Pick(b, 2010, 20_010), Templates: harness.Pick(b, 100, 600), Managed: managed})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		h := &holders{b: b, rig: r}
		if err := h.prepare(ctx); err != nil {
			return err
		}
		objects = r.info.Objects
		sides = append(sides, h.ours(name+"-raw", system.ReplicaConfig{Tier: indexer.TierRaw}), h.ours(name+"-compact", system.ReplicaConfig{Tier: indexer.TierCompact}))
	}
	t, err := harness.Interleave(ctx, b, harness.Plan{What: "managed", Rounds: harness.Pick(b, 1, 3), Cold: true}, sides...)
	if err != nil {
		return err
	}
	for _, tier := range []string{"raw", "compact"} {
		managed, bare := "managed-"+tier, "bare-"+tier
		b.Add(harness.Compare(fmt.Sprintf("live heap per pod with managed fields, 5 indexes, %d pods, %s tier", objects, tier), "B",
			t.Of(managed, "live"), "without", t.Of(bare, "live"), nil).With("payload as stored", "B", t.Of(managed, "stored")).With("without", "B", t.Of(bare, "stored")))
	}
	return nil
}
