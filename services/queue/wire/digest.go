package wire

import (
	"hash/maphash"
	"math/bits"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

var seed = maphash.MakeSeed()

// Digest sums up what a request asks for, every field of it, and so distinguishes
// requests that have the same number. It is valid within this process.
type Digest uint64

// Number adds a number.
func (d *Digest) Number(n uint64) {
	const prime = 0x9E3779B97F4A7C15
	*d = Digest((bits.RotateLeft64(uint64(*d), 23) ^ n) * prime)
}

// Text adds a text.
func (d *Digest) Text(s string) { d.Number(maphash.String(seed, s)) }

func (d *Digest) marks(all []workqueue.Mark) {
	d.Number(uint64(len(all)))
	for i := range all {
		d.Text(all[i].Collection)
		d.Number(all[i].Epoch)
		d.Text(all[i].RV)
	}
}

// Op adds what a caller says of an operation; what the server adds to it, as
// Once, is left out.
func (d *Digest) Op(op *workqueue.Op) {
	level := uint64(op.Level)
	if op.Kind == workqueue.OpSettle && !op.Relevel {
		level = workqueue.Levels // none is asked for
	}
	flags := uint64(btoi(op.Last) | btoi(op.Limited)<<1) //nolint:gosec // bits
	d.Number(uint64(op.Kind) | uint64(op.Outcome)<<8 | level<<16 | flags<<24)
	d.Text(op.Key)
	d.Number(op.Token)
	d.Number(uint64(op.Delay)) //nolint:gosec // the same bits
	d.Text(op.Trace)
	if m := op.More; m != nil && len(m.Barrier)+len(m.Wrote)+len(m.Reason)+len(m.Writes) > 0 {
		d.marks(m.Barrier)
		d.marks(m.Wrote)
		d.Text(m.Reason)
		for i := range m.Writes {
			d.Text(m.Writes[i].Verb)
			d.Text(m.Writes[i].Collection)
			d.Text(m.Writes[i].Key)
			d.Text(m.Writes[i].RV)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
