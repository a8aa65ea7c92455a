package memory

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

func TestADirectoryIsSyncedAfterItsLogWasReplaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		durability workqueue.Durability
		fails      error
		after      error // of turns
	}{
		"memory": {},
		"fsync":  {durability: workqueue.Fsync},
		// The log is whole: what the queue promises does not need the directory.
		"memory, and the disk fails": {fails: os.ErrPermission},
		"fsync, and the disk fails":  {durability: workqueue.Fsync, fails: os.ErrPermission, after: engine.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			e, q := loggedAs(t, dir, Config{}, workqueue.Config{Durability: c.durability})
			mq := q.(*queue)
			before, err := os.Stat(mq.path())
			if err != nil {
				t.Fatal(err)
			}
			synced := 0
			e.syncDir = func(of string) error {
				now, err := os.Stat(mq.path())
				if err != nil || of != dir || os.SameFile(before, now) {
					t.Errorf("%s is synced before the log is replaced: %v", of, err)
				}
				synced++
				return c.fails
			}
			mq.rewrite()
			if synced != 1 {
				t.Errorf("the directory was synced %d times, want once", synced)
			}
			in := add("k")
			if _, err := q.Partitions()[0].Turn(t.Context(), &in); !errors.Is(err, c.after) {
				t.Errorf("a turn after the rewriting: %v, want %v", err, c.after)
			}
		})
	}
}

func TestASnapshotHoldsTheLastHolders(t *testing.T) {
	t.Parallel()
	item := workqueue.SavedItem{Key: "k", State: workqueue.Buried, Reason: "r", Holders: []string{"a", "b"}}
	_, got, err := decodeItems(appendItems(nil, 0, []workqueue.SavedItem{item}))
	if err != nil || len(got) != 1 || !slices.Equal(got[0].Holders, item.Holders) {
		t.Errorf("read back %+v, %v, want %+v", got, err, item)
	}
}
