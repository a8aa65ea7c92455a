package memory

import (
	"encoding/binary"
	"math"

	"github.com/deltaplane/deltaplane/core/expectations"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// The keys and back-off ids of a snapshot, as transactions are kept.

const (
	hasLease = 1 << iota
	hasPlace
	hasDue
	hasMore
	hasExpect
	hasHolders
)

func appendItems(b []byte, partition int, all []workqueue.SavedItem) []byte {
	b = binary.AppendUvarint(b, uint64(partition))
	b = binary.AppendUvarint(b, uint64(len(all)))
	for i := range all {
		b = appendItem(b, &all[i])
	}
	return b
}

// bitsOf says what is kept of an item.
func bitsOf(v *workqueue.SavedItem) byte {
	held := v.State == workqueue.Processing || v.State == workqueue.Dirty
	more := len(v.Barrier) > 0 || v.BarrierUntil != 0 || len(v.Traces) > 0 || len(v.Data) > 0 || v.Reason != ""
	return bit(held, hasLease) | bit(held || v.State == workqueue.Ready, hasPlace) | bit(v.Due != 0, hasDue) |
		bit(more, hasMore) | bit(v.Expect != nil, hasExpect) | bit(len(v.Holders) > 0, hasHolders)
}

func appendItem(b []byte, v *workqueue.SavedItem) []byte {
	bits := bitsOf(v)
	b = append(b, byte(v.State), bits)
	b = appendString(b, v.Key)
	b = binary.AppendUvarint(b, uint64(v.Failures))
	if bits&hasPlace != 0 {
		b = append(b, v.Level)
		b = binary.AppendUvarint(b, uint64(v.Attempt))
		b = binary.AppendUvarint(b, v.Seq)
		b = binary.AppendVarint(b, v.AddedAt)
		b = binary.AppendVarint(b, v.ReadyAt)
	}
	if bits&hasLease != 0 {
		b = append(b, v.Again)
		b = binary.AppendUvarint(b, v.Token)
		b = appendString(b, v.Holder)
		b = binary.AppendVarint(b, v.Deadline)
		b = binary.AppendVarint(b, v.DirtyAt)
	}
	if bits&hasDue != 0 {
		b = append(b, v.DueLevel, bit(v.DueLimited, 1))
		b = binary.AppendVarint(b, v.Due)
		b = binary.AppendUvarint(b, v.DueOnce)
	}
	if bits&hasMore != 0 {
		b = appendMarks(b, v.Barrier)
		b = binary.AppendVarint(b, v.BarrierUntil)
		b = appendStrings(b, v.Traces)
		b = appendString(b, string(v.Data))
		b = appendString(b, v.Reason)
	}
	if e := v.Expect; e != nil {
		b = appendString(b, e.Owner)
		b = appendStrings(b, e.Creates)
		b = appendStrings(b, e.Deletes)
		b = binary.AppendUvarint(b, e.Token)
		b = binary.AppendVarint(b, e.StoredAt)
	}
	if bits&hasHolders != 0 {
		b = appendStrings(b, v.Holders)
	}
	return b
}

func decodeItems(b []byte) (partition int, all []workqueue.SavedItem, err error) {
	d := &decoder{b: b}
	partition = d.partition()
	for range d.len() {
		all = append(all, d.item())
	}
	if d.bad || len(d.b) > 0 {
		return 0, nil, errTransaction
	}
	return partition, all, nil
}

func (d *decoder) item() workqueue.SavedItem {
	v := workqueue.SavedItem{State: workqueue.State(d.byte(workqueue.StateDead))}
	bits := d.byte(1<<8 - 1)
	v.Key, v.Failures = d.string(), uint32(d.upTo(math.MaxUint32))
	if bits&hasPlace != 0 {
		v.Level, v.Attempt, v.Seq = d.byte(workqueue.Levels-1), uint16(d.upTo(math.MaxUint16)), d.uint()
		v.AddedAt, v.ReadyAt = d.int(), d.int()
	}
	if bits&hasLease != 0 {
		v.Again, v.Token, v.Holder = d.byte(workqueue.Levels-1), d.uint(), d.string()
		v.Deadline, v.DirtyAt = d.int(), d.int()
	}
	if bits&hasDue != 0 {
		v.DueLevel, v.DueLimited = d.byte(workqueue.Levels-1), d.byte(1) == 1
		v.Due, v.DueOnce = d.int(), d.uint()
	}
	if bits&hasMore != 0 {
		v.Barrier, v.BarrierUntil, v.Traces = d.marks(), d.int(), d.strings()
		if s := d.string(); s != "" {
			v.Data = []byte(s)
		}
		v.Reason = d.string()
	}
	if bits&hasExpect != 0 {
		v.Expect = &expectations.Set{Owner: d.string(), Creates: d.strings(), Deletes: d.strings(), Token: d.uint(), StoredAt: d.int()}
	}
	if bits&hasHolders != 0 {
		v.Holders = d.strings()
	}
	d.bad = d.bad || bits != bitsOf(&v)
	return v
}

// upTo reads a number of at most a value.
func (d *decoder) upTo(most uint64) uint64 {
	n := d.uint()
	d.bad = d.bad || n > most
	return n
}

// byte reads a byte of at most a value.
func (d *decoder) byte(most workqueue.State) byte {
	b := d.take(1)
	if d.bad || b[0] > byte(most) {
		d.bad = true
		return 0
	}
	return b[0]
}

func appendEntries(b []byte, partition int, all []workqueue.SavedEntry) []byte {
	b = binary.AppendUvarint(b, uint64(partition))
	b = binary.AppendUvarint(b, uint64(len(all)))
	for i := range all {
		b = appendString(b, all[i].ID)
		b = binary.AppendVarint(b, all[i].Delay)
		b = binary.AppendVarint(b, all[i].Updated)
	}
	return b
}

func decodeEntries(b []byte) (partition int, all []workqueue.SavedEntry, err error) {
	d := &decoder{b: b}
	partition = d.partition()
	for range d.len() {
		all = append(all, workqueue.SavedEntry{ID: d.string(), BackoffEntry: workqueue.BackoffEntry{Delay: d.int(), Updated: d.int()}})
	}
	if d.bad || len(d.b) > 0 {
		return 0, nil, errTransaction
	}
	return partition, all, nil
}
