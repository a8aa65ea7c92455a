package memory

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// A transaction in the log: partition, time, tokens of a transaction of another partition than the
// first, takes, operations. Numbers are varints, strings have their length in front.

const (
	bitRelevel = 1 << iota
	bitLast
	bitLimited
	bitShorten
	bitMore
	bitKnown
	bitRare
)

func appendTransaction(b []byte, partition int, now int64, t *workqueue.Transaction) []byte {
	b = binary.AppendUvarint(b, uint64(partition))
	b = binary.AppendVarint(b, now)
	keep := byte(0)
	if t.KeepLeases {
		keep = 2
	}
	if t.Away {
		b = append(b, keep|1)
		b = binary.AppendVarint(b, int64(t.Admitted))
		b = binary.AppendUvarint(b, uint64(len(t.Reserved)))
		for _, r := range t.Reserved {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.From))
			b = binary.AppendVarint(b, int64(r.Count))
		}
	} else {
		b = append(b, keep)
	}
	b = binary.AppendUvarint(b, uint64(len(t.Takes)))
	for _, k := range t.Takes {
		b = appendString(b, k.Holder)
		b = binary.AppendVarint(b, int64(k.Max))
		b = binary.AppendVarint(b, k.For)
	}
	b = binary.AppendUvarint(b, uint64(len(t.Ops)))
	for i := range t.Ops {
		b = appendOp(b, &t.Ops[i])
	}
	return b
}

func appendOp(b []byte, op *workqueue.Op) []byte {
	rare := op.Once != 0 || op.Count != 0 || op.Event != 0 || op.Random != 0
	bits := bit(op.Relevel, bitRelevel) | bit(op.Last, bitLast) | bit(op.Limited, bitLimited) |
		bit(op.Shorten, bitShorten) | bit(op.More != nil, bitMore) | bit(op.Known != 0, bitKnown) | bit(rare, bitRare)
	b = append(b, byte(op.Kind), byte(op.Outcome), op.Level, bits)
	b = appendString(b, op.Key)
	b = binary.AppendUvarint(b, op.Token)
	b = binary.AppendVarint(b, op.Delay)
	b = binary.AppendVarint(b, op.For)
	b = appendString(b, op.Trace)
	if op.Known != 0 {
		b = binary.AppendVarint(b, op.Known)
	}
	if rare {
		b = binary.AppendUvarint(b, op.Once)
		b = binary.AppendVarint(b, int64(op.Count))
		b = binary.AppendVarint(b, op.Event)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(op.Random))
	}
	if m := op.More; m != nil {
		b = appendMarks(b, m.Barrier)
		b = appendMarks(b, m.Wrote)
		b = appendString(b, m.Reason)
		b = appendString(b, string(m.Data))
		b = appendString(b, m.Owner)
		b = appendStrings(b, m.Creates)
		b = appendStrings(b, m.Deletes)
	}
	return b
}

func bit(set bool, b byte) byte {
	if set {
		return b
	}
	return 0
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendStrings(b []byte, all []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, s := range all {
		b = appendString(b, s)
	}
	return b
}

func appendMarks(b []byte, all []workqueue.Mark) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, m := range all {
		b = appendString(b, m.Collection)
		b = binary.AppendUvarint(b, m.Epoch)
		b = appendString(b, m.RV)
	}
	return b
}

var errTransaction = errors.New("a record cannot be read")

// decoder reads what append wrote; after a fault everything is zero.
type decoder struct {
	b   []byte
	bad bool
}

func decodeTransaction(b []byte) (partition int, now int64, t *workqueue.Transaction, err error) {
	d := &decoder{b: b}
	partition, now = d.partition(), d.int()
	t = &workqueue.Transaction{}
	switch flag := d.take(1); {
	case d.bad:
	case flag[0] > 3:
		d.bad = true
	default:
		t.KeepLeases = flag[0]&2 != 0
		if flag[0]&1 == 0 {
			break
		}
		t.Away, t.Admitted = true, int(d.int())
		for range d.len() {
			t.Reserved = append(t.Reserved, workqueue.Reserved{From: d.float(), Count: int(d.int())})
		}
	}
	for range d.len() {
		t.Takes = append(t.Takes, workqueue.Take{Holder: d.string(), Max: int(d.int()), For: d.int()})
	}
	for range d.len() {
		t.Ops = append(t.Ops, d.op())
	}
	if d.bad || len(d.b) > 0 {
		return 0, 0, nil, errTransaction
	}
	return partition, now, t, nil
}

func (d *decoder) op() workqueue.Op {
	head := d.take(4)
	if d.bad {
		return workqueue.Op{}
	}
	op := workqueue.Op{Kind: workqueue.OpKind(head[0]), Outcome: workqueue.Outcome(head[1]), Level: head[2]}
	bits := head[3]
	op.Relevel, op.Last, op.Limited, op.Shorten = bits&bitRelevel != 0, bits&bitLast != 0, bits&bitLimited != 0, bits&bitShorten != 0
	if op.Level >= workqueue.Levels {
		d.bad = true
	}
	op.Key, op.Token, op.Delay, op.For, op.Trace = d.string(), d.uint(), d.int(), d.int(), d.string()
	if bits&bitKnown != 0 {
		op.Known = d.int()
	}
	if bits&bitRare != 0 {
		op.Once, op.Count, op.Event, op.Random = d.uint(), int(d.int()), d.int(), d.float()
	}
	if bits&bitMore != 0 {
		m := &workqueue.More{Barrier: d.marks(), Wrote: d.marks(), Reason: d.string()}
		if s := d.string(); s != "" {
			m.Data = []byte(s)
		}
		m.Owner, m.Creates, m.Deletes = d.string(), d.strings(), d.strings()
		op.More = m
	}
	return op
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	s := d.b[:n]
	d.b = d.b[n:]
	return s
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) partition() int {
	n := d.uint()
	d.bad = d.bad || n >= workqueue.MaxPartitions
	return int(n)
}

// float reads a number that is one.
func (d *decoder) float() float64 {
	b := d.take(8)
	if d.bad {
		return 0
	}
	f := math.Float64frombits(binary.LittleEndian.Uint64(b))
	d.bad = math.IsNaN(f) || math.IsInf(f, 0)
	return f
}

// len reads a count; every element takes at least a byte.
func (d *decoder) len() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) string() string { return string(d.take(d.len())) }

func (d *decoder) strings() []string {
	var out []string
	for range d.len() {
		out = append(out, d.string())
	}
	return out
}

func (d *decoder) marks() workqueue.Barrier {
	var out workqueue.Barrier
	for range d.len() {
		out = append(out, workqueue.Mark{Collection: d.string(), Epoch: d.uint(), RV: d.string()})
	}
	return out
}
