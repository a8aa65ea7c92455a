package indexer_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// heavy files each object under five values of 2 KB that no other has.
func heavy(name string) *indexv1.IndexerDefinition {
	return byCEL(name, fmt.Sprintf("['1','2','3','4','5'].map(x, x + object.metadata.name + '%s')", strings.Repeat("x", 1990)))
}

func TestAnIndexThatDoesNotFitIntoTheMemoryBudgetIsNotBuilt(t *testing.T) {
	t.Parallel()
	const budget = 4 << 20
	w := newWorld(t)
	w.start(t, many(0, 600, 2000)...)
	r := w.index(t, func(c *indexer.Config) { c.Tier, c.MemoryBudget, c.RingChanges = indexer.TierRaw, budget, 64 })
	w.caughtUp(t, r)
	every := func(*indexv1.CollectionStatus) bool { return true }
	added := r.add(t, podsName, heavy("heavy"), byField("by-node", "spec.nodeName"), byLabel("by-app", "app"))
	if x := added[0]; x.GetState() != indexv1.IndexerState_INDEXER_STATE_FAILED || !strings.Contains(x.GetLastError(), "memory budget") {
		t.Errorf("heavy = %v, want it to fail for the memory budget", x)
	}
	_, err := r.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: podsName, Index: "heavy", Value: "v"})
	wantStatus(t, "a read of heavy", err, codes.FailedPrecondition, "INDEX_FAILED", "")
	for _, name := range []string{"by-node", "by-app"} {
		r.awaitIndexer(t, name, ready)
	}
	r.status(t, "what the index had is given back", podsName, func(c *indexv1.CollectionStatus) bool { return c.GetMemoryBytes() < budget*2/3 })
	w.put(t, many(600, 50, 2000)...)
	w.caughtUp(t, r)
	if got := r.byIndex(t, "by-node", "n1"); len(got) < 70 {
		t.Errorf("%d objects by node, want all", len(got))
	}
	if c := r.status(t, "after", podsName, every); c.GetObjects() != 650 || c.GetLastError() != "" || c.GetMemoryBytes() > budget {
		t.Errorf("status %v, want all objects and no error", c)
	}
	if _, err := r.RemoveIndexers(t.Context(), &indexv1.RemoveIndexersRequest{Collection: podsName, Names: []string{"heavy"}}); err != nil {
		t.Fatal(err)
	}
	if x := r.add(t, podsName, byField("heavy", "status.phase")); x[0].GetState() != ready {
		t.Errorf("another definition of the name = %v, want it ready", x[0])
	}
}

func TestAnIndexThatWasLeftOutIsBuiltOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	const budget = 4 << 20
	w := newWorld(t)
	w.start(t, many(0, 600, 2000)...)
	r := w.index(t, func(c *indexer.Config) { c.Tier, c.MemoryBudget, c.RingChanges = indexer.TierRaw, budget, 64 })
	w.caughtUp(t, r)
	added := r.add(t, podsName, heavy("heavy"))
	if x := added[0]; x.GetState() != indexv1.IndexerState_INDEXER_STATE_FAILED || !strings.Contains(x.GetLastError(), "it is built again once") {
		t.Errorf("heavy is %v: %.400s, want it to fail and say when it is built again", x.GetState(), x.GetLastError())
	}
	var deletes []delta.Record
	for i := range 560 {
		deletes = append(deletes, gone(fmt.Sprintf("n/p%d", i)))
	}
	w.put(t, deletes...)
	w.caughtUp(t, r)
	eventually(t, func() string {
		if x := r.indexer(t, podsName, "heavy"); x.GetState() != ready {
			return fmt.Sprintf("with a fifteenth of the objects, heavy is %v: %.400s", x.GetState(), x.GetLastError())
		}
		return ""
	})
	for _, name := range []string{"p560", "p599"} {
		if got := r.byIndex(t, "heavy", "1"+name+strings.Repeat("x", 1990)); len(got) != 1 || got[0] != "n/"+name {
			t.Errorf("by heavy = %q, want %s", got, name)
		}
	}
}

func TestAnIndexThatTakesTheRoomOfItsCollectionIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 600, 2000)...)
	free := w.index(t, nil)
	w.caughtUp(t, free)
	if x := free.add(t, podsName, heavy("heavy")); x[0].GetState() != ready {
		t.Fatalf("without a budget = %v, want it ready", x[0])
	}
	r := w.index(t, func(c *indexer.Config) { c.Tier, c.MemoryBudget, c.RingChanges = indexer.TierRaw, 4<<20, 64 })
	w.caughtUp(t, r)
	w.put(t, many(600, 50, 2000)...)
	w.caughtUp(t, r)
	r.awaitIndexer(t, "heavy", indexv1.IndexerState_INDEXER_STATE_FAILED)
	c := r.status(t, "held", podsName, func(c *indexv1.CollectionStatus) bool { return c.GetObjects() == 650 })
	if c.GetMemoryBytes() > 4<<20 || c.GetLastError() != "" {
		t.Errorf("status %v, want it held within the budget", c)
	}
}

func TestACollectionThatIsRefusedForItsIndexesIsTriedAgainWithoutThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 600, 2000)...)
	free := w.index(t, nil)
	w.caughtUp(t, free)
	var names []string
	for i := range 4 { // none takes a quarter of the whole
		names = append(names, fmt.Sprint("light-", i))
		free.add(t, podsName, byCEL(names[i], fmt.Sprintf("'%d' + object.metadata.name + '%s'", i, strings.Repeat("x", 800))))
	}
	r := w.index(t, func(c *indexer.Config) { c.Tier, c.MemoryBudget, c.RingChanges = indexer.TierRaw, 5<<19, 64 })
	refused := func(c *indexv1.CollectionStatus) bool { return strings.Contains(c.GetLastError(), "memory budget") }
	// A replay in several batches, as on a slow machine, is refused itself.
	r.status(t, "replayed or refused", podsName, func(c *indexv1.CollectionStatus) bool { return c.GetSynced() || refused(c) })
	r.status(t, "refused", podsName, func(c *indexv1.CollectionStatus) bool {
		// If the definitions were known late, the indexes are built after the first batch.
		w.put(t, many(600, 10, 2000)...)
		return refused(c)
	})
	if _, err := free.RemoveIndexers(t.Context(), &indexv1.RemoveIndexersRequest{Collection: podsName, Names: names}); err != nil {
		t.Fatal(err)
	}
	r.status(t, "held", podsName, func(c *indexv1.CollectionStatus) bool { return c.GetSynced() && c.GetObjects() == 610 })
}
