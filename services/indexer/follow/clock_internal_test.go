package follow

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
)

// A reflector whose clock is ahead must not make a collection look current, nor
// its position resumable, for longer than it is.
func TestARecordFromTheFutureMakesNothingFresherThanNow(t *testing.T) {
	t.Parallel()
	c := newTestCollection(t, nil)
	mustApply(t, c, delta.Batch{Reset: true, Replayed: true, Records: []delta.Record{record(1, time.Hour), synced(2), record(3, -2*time.Hour)}, Next: 4})
	if got := c.store.Snapshot().State().Fresh; !got.Equal(now) {
		t.Errorf("fresh at %v, want %v", got, now)
	}
}

func TestAFileFromTheFutureIsNotResumed(t *testing.T) {
	t.Parallel()
	for ahead, want := range map[time.Duration]error{0: nil, time.Second: nil, 10 * time.Minute: errCheckpointOld, -29 * time.Minute: nil, -31 * time.Minute: errCheckpointOld} {
		c := newTestCollection(t, nil)
		image := &checkpoint.Image{Header: checkpoint.Header{
			Fresh: now.Add(ahead), Mark: delta.Mark{Position: delta.Position{Epoch: 1, Sequence: 3, Term: 1}, Claimed: delta.Revision{Epoch: 1, RV: "3"}},
			Facts: factsOf(c.Indexes.Plan()),
		}}
		if err := c.adopt(t.Context(), image, 1); !errors.Is(err, want) {
			t.Errorf("a file that was current %v from now: %v, want %v", ahead, err, want)
		}
	}
}

// Objects of a file share its buffers: what is left of those must be counted,
// and put together, as of any other payloads.
func TestBuffersOfAFileAreCountedAndPutTogether(t *testing.T) {
	t.Parallel()
	const objects, size = 2000, 8 << 10
	c := newTestCollection(t, nil)
	var image checkpoint.Image
	image.Header = checkpoint.Header{
		Fresh: now, Mark: delta.Mark{Position: delta.Position{Epoch: 1, Sequence: objects, Term: 1}, Claimed: delta.Revision{Epoch: 1, RV: "3"}},
		Facts: factsOf(c.Indexes.Plan()),
	}
	for at := 0; at < objects; at += objects / 10 {
		block := make([]byte, objects/10*size)
		image.Blocks = append(image.Blocks, block)
		for i := range objects / 10 {
			image.Objects = append(image.Objects, store.NewObject(store.ObjectConfig{
				Key: fmt.Sprintf("n/p%06d", at+i), RV: fmt.Sprint(at + i + 1), Epoch: 1, Sequence: uint64(at + i + 1), Payload: block[i*size : (i+1)*size : (i+1)*size],
			}))
		}
	}
	if err := c.adopt(t.Context(), &image, 1); err != nil {
		t.Fatal(err)
	}
	image = checkpoint.Image{}
	var ops []store.Op
	for i := range objects {
		if i%100 > 0 { // one in a hundred keeps its block alive
			ops = append(ops, store.Op{Delete: &store.Tombstone{Key: fmt.Sprintf("n/p%06d", i), RV: fmt.Sprint(objects + i), Epoch: 1, Sequence: uint64(objects + i), At: now}})
		}
	}
	c.store.Apply(store.Batch{Ops: ops}, now)
	runtime.GC()
	c.keeper.Measure()
	if held := c.keeper.Held(); held < objects*size {
		t.Errorf("%d bytes are held, want the %d of the file's buffers", held, objects*size)
	}
	for at, end := now, now.Add(time.Minute); at.Before(end); at = at.Add(time.Second) {
		for c.keeper.Step(at) {
		}
	}
	runtime.GC()
	c.keeper.Measure()
	if held := c.keeper.Held(); held > objects*size/10 {
		t.Errorf("%d bytes are held for %d objects of %d", held, c.store.Snapshot().Len(), size)
	}
}
