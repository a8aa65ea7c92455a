package reflector

import (
	"bytes"
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// intakeChunk is how many items are staged at once.
const intakeChunk = 64

// intake stages what differs in one page while it arrives. While a page arrives it never waits: a
// slow log would hold the API server's answer open, against its time limit and ours. What finds the
// stage full is kept as it came, at most the rest of the page, until the page is complete and may
// wait for the log.
type intake struct {
	s       *source
	items   int
	records []delta.Record
	looked  int // items since the last flush
	left    int // of these, those of other namespaces
	full    bool
	late    [][]byte
	// lateBytes is the sum of late.
	lateBytes int
}

// item takes one item; raw is not kept.
func (t *intake) item(raw []byte) error {
	t.items++
	if t.s.chosen.leaves(raw) {
		t.left++
		if t.looked++; t.looked >= intakeChunk {
			t.catchUp()
		}
		return nil
	}
	if t.full {
		t.late = append(t.late, bytes.Clone(raw))
		t.lateBytes += len(raw)
		if len(t.late)%intakeChunk == 0 {
			t.catchUp()
		}
		return nil
	}
	t.take(raw)
	return nil
}

func (t *intake) take(raw []byte) {
	if rec, ok := t.s.listed(raw, time.Now()); ok {
		t.records = append(t.records, rec)
	}
	if t.looked++; t.looked >= intakeChunk {
		t.flush()
	}
}

// flush stages what was taken, and looks whether there is room for more.
func (t *intake) flush() {
	if t.looked > 0 {
		t.s.p.add(func(st *delta.Stage) {
			for i := range t.records {
				st.Push(t.records[i])
			}
		})
		t.s.r.state.set(func(v *view) {
			v.objects, v.tombstones, v.sourceAt = t.s.shadow.Len(), t.s.shadow.Tombstones(), time.Now()
			v.list.objects += t.looked
		})
		clear(t.records) // the stage has them
		t.s.leave(t.left)
		t.s.left += t.left
		t.records, t.looked, t.left = t.records[:0], 0, 0
	}
	t.full = t.s.p.bytes() > t.s.r.cfg.StageBytes/2
}

// catchUp takes what came late, in order, while there is room.
func (t *intake) catchUp() {
	for t.flush(); !t.full && len(t.late) > 0; {
		raw := t.late[0]
		t.late[0], t.late = nil, t.late[1:]
		t.lateBytes -= len(raw)
		t.take(raw)
	}
}

// rest takes everything that came late, as there is room.
func (t *intake) rest(ctx context.Context) error {
	for t.catchUp(); t.full; t.catchUp() {
		if !attempt.Sleep(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
	t.flush()
	return nil
}
