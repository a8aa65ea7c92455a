package follow

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
)

// deleted is a deletion with the object as it was deleted.
func deleted(seq uint64, key string, pad int) delta.Record {
	r := record(seq, 0)
	r.Key, r.Type, r.DeleteReason = delta.Key(key), delta.Deleted, delta.Observed
	_, name, _ := bytes.Cut([]byte(key), []byte("/"))
	r.Payload = fmt.Appendf(nil, `{"metadata":{"namespace":"n","name":%q},"pad":%q}`, name, bytes.Repeat([]byte("x"), pad))
	return r
}

// The ring of changes holds deleted objects: they count for the budget until they leave it.
func TestObjectsAsTheyWereDeletedCountForTheMemory(t *testing.T) {
	t.Parallel()
	const size, n = 32 << 10, 64
	c := newTestCollection(t, nil)
	var puts, ends []delta.Record
	for i := uint64(1); i <= n; i++ {
		puts = append(puts, record(i, 0))
	}
	mustApply(t, c, delta.Batch{Reset: true, Replayed: true, Records: append(puts, synced(n+1)), Next: n + 2})
	runtime.GC()
	c.keeper.Measure()
	before := c.Memory()
	for i := uint64(1); i <= n; i++ {
		ends = append(ends, deleted(n+1+i, fmt.Sprintf("n/p%d", i), size))
	}
	mustApply(t, c, delta.Batch{Records: ends, Next: 2*n + 2})
	change, err := c.store.Change(c.store.Snapshot().LastChange())
	if err != nil || change.Final == nil {
		t.Fatalf("the last change is %+v, %v", change, err)
	}
	runtime.GC()
	c.keeper.Measure()
	if grown := c.Memory() - before; grown < n*size {
		t.Errorf("the memory grew by %d, with %d objects of %d bytes", grown, n, size)
	}
}

func TestARefusedCollectionIsTriedAgainWhereItMayFit(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		need      int
		then, now uint64
		want      int
	}{
		"as it was":                     {1000, 4000, 4000, 1100},
		"with a log that was not known": {1000, 0, 0, 1100},
		"its log is half":               {1000, 4000, 2000, 550},
		"its log is larger":             {1000, 4000, 8000, 1100},
		"garbage was counted, and the log is not so large":             {9000, 4000, 4000, 5000},
		"a part of a larger log was counted, and then it became small": {2_156_581, 1_060_000, 978_192, 1_222_740},
	} {
		if got := (&refusal{need: row.need, log: row.then}).wants(row.now); got != row.want {
			t.Errorf("%s: it waits for %d bytes, want %d", name, got, row.want)
		}
	}
}
