package redis

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/deltaplane/deltaplane/core/expectations"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

var errReply = errors.New("queue: the script's answer cannot be read")

// reader reads what cmsgpack wrote. After the first fault every read gives
// zero values and err is set.
type reader struct {
	b   string
	err error
}

func (r *reader) fail() {
	if r.err == nil {
		r.err = errReply
	}
	r.b = ""
}

func (r *reader) take(n int) string {
	if n < 0 || n > len(r.b) {
		r.fail()
		return ""
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

func (r *reader) uint(n int) uint64 {
	s := r.take(n)
	if len(s) < n {
		return 0
	}
	var buf [8]byte
	copy(buf[8-n:], s)
	return binary.BigEndian.Uint64(buf[:])
}

func (r *reader) tag() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0xc0
	}
	t := r.b[0]
	r.b = r.b[1:]
	return t
}

// num reads a number of any encoding as an integer.
func (r *reader) num() int64 {
	switch t := r.tag(); {
	case t <= 0x7f:
		return int64(t)
	case t >= 0xe0:
		return int64(int8(t))
	case t == 0xcc:
		return int64(r.uint(1))
	case t == 0xcd:
		return int64(r.uint(2))
	case t == 0xce:
		return int64(r.uint(4))
	case t == 0xcf || t == 0xd3:
		return int64(r.uint(8))
	case t == 0xd0:
		return int64(int8(r.uint(1)))
	case t == 0xd1:
		return int64(int16(r.uint(2)))
	case t == 0xd2:
		return int64(int32(r.uint(4)))
	case t == 0xca:
		return whole(float64(math.Float32frombits(uint32(r.uint(4)))))
	case t == 0xcb:
		return whole(math.Float64frombits(r.uint(8)))
	default:
		r.fail()
		return 0
	}
}

func whole(f float64) int64 {
	if math.IsNaN(f) || math.Abs(f) > 1<<62 {
		return 0
	}
	return int64(f)
}

func (r *reader) str() string {
	switch t := r.tag(); {
	case t&0xe0 == 0xa0:
		return r.take(int(t & 0x1f))
	case t == 0xd9 || t == 0xc4:
		return r.take(int(r.uint(1)))
	case t == 0xda || t == 0xc5:
		return r.take(int(r.uint(2)))
	case t == 0xdb || t == 0xc6:
		return r.take(int(r.uint(4)))
	default:
		r.fail()
		return ""
	}
}

// pairs reads the length of a map.
func (r *reader) pairs() int {
	n := 0
	switch t := r.tag(); {
	case t&0xf0 == 0x80:
		n = int(t & 0x0f)
	case t == 0xde:
		n = int(r.uint(2))
	case t == 0xdf:
		n = int(r.uint(4))
	default:
		r.fail()
	}
	if n > len(r.b) {
		r.fail()
		return 0
	}
	return n
}

// array reads the length of an array; every element takes at least a byte.
func (r *reader) array() int {
	n := 0
	switch t := r.tag(); {
	case t&0xf0 == 0x90:
		n = int(t & 0x0f)
	case t == 0xdc:
		n = int(r.uint(2))
	case t == 0xdd:
		n = int(r.uint(4))
	case t == 0x80: // cmsgpack may write an empty table as a map
		return 0
	default:
		r.fail()
	}
	if n > len(r.b) {
		r.fail()
		return 0
	}
	return n
}

// decodeTransaction reads the script's answer to a transaction.
func decodeTransaction(blob string, t *workqueue.Transaction) (*workqueue.Result, error) {
	res, _, err := decodeAnswer(blob, t)
	return res, err
}

// decodeAnswer is decodeTransaction with the offset of the partition's clock.
func decodeAnswer(blob string, t *workqueue.Transaction) (res *workqueue.Result, off int64, err error) {
	r := &reader{b: blob}
	r.str() // the transaction's number
	res = &workqueue.Result{Now: r.num(), NextDue: r.num()}
	res.Counts = workqueue.Counts{Ready: int(r.num()), Delayed: int(r.num()), Processing: int(r.num()), Dirty: int(r.num()), Dead: int(r.num())}
	res.Added, res.Retried, res.Promoted, res.Expired = int(r.num()), int(r.num()), int(r.num()), int(r.num())
	res.Died, res.Spent, res.NextSweep = int(r.num()), int(r.num()), r.num()
	status := r.str()
	if len(status) != len(t.Ops) {
		r.fail()
	}
	r.array() // what follows is read as the operations ask for it
	res.Replies = make([]workqueue.Reply, len(t.Ops))
	for i := range min(len(status), len(t.Ops)) {
		r.reply(status[i], &t.Ops[i], &res.Replies[i], res.Now)
	}
	r.leases(res)
	if by := r.num(); by != 0 {
		res.Corrected = &workqueue.Correction{Now: res.Now, By: by}
	}
	off = r.num()
	if r.err == nil && r.b != "" {
		r.fail()
	}
	if r.err != nil {
		return nil, 0, r.err
	}
	return res, off, nil
}

// reply reads what goes with a status.
func (r *reader) reply(status byte, op *workqueue.Op, rep *workqueue.Reply, now int64) {
	rep.Status = workqueue.Status(status & 0x7f)
	if status > 0x7f {
		rep.Requeues, rep.ReadyAt, rep.Deadline = int(r.num()), r.num(), r.num()
	}
	switch op.Kind {
	case workqueue.OpInspect:
		rec := r.record(r.str())
		deadline, holder := r.num(), r.str()
		rep.Item = rec.item(op.Key, holder, deadline, now)
	case workqueue.OpObserve:
		if r.num() != 0 {
			rep.Expect = r.expect(r.str(), r.id(), r.num(), r.str())
		}
	case workqueue.OpBackoffGet, workqueue.OpBackoffNext:
		rep.Backoff = workqueue.BackoffEntry{Delay: r.num(), Updated: r.num()}
	case workqueue.OpReserve:
		if rep.Count = int(r.num()); rep.Count > 0 {
			for range min(int(r.num()), len(r.b)) {
				rep.From = append(rep.From, math.Float64frombits(r.id()))
			}
		}
	case workqueue.OpAdmit, workqueue.OpAudit:
		rep.Count, rep.Next = int(r.num()), r.num()
	}
}

// leases reads groups of leases that have take, duration and the record from
// before in common; their tokens follow one another.
func (r *reader) leases(res *workqueue.Result) {
	const width = 4
	token := uint64(r.num())
	groups := &reader{b: r.b}
	n := groups.array()
	r.array()
	if n%width != 0 {
		r.fail()
	}
	total := 0
	for range n / width { // the keys come behind the groups
		r.num()
		total += int(r.num())
		r.num()
		r.str()
	}
	if keys := r.array(); r.err != nil || keys != total || total < 0 {
		r.fail()
		return
	}
	if total == 0 {
		return
	}
	res.Leases = make([]workqueue.Lease, 0, total)
	for range n / width {
		take, count, dur := int(groups.num()), int(groups.num()), groups.num()
		rec := r.record(groups.str())
		l := workqueue.Lease{Take: take, Deadline: res.Now + dur, AddedAt: rec.added, ReadyAt: rec.ready, Level: rec.level, Attempt: min(rec.attempt+1, math.MaxUint16)}
		if m := rec.more; m != nil {
			l.Requeues, l.Barrier, l.Traces, l.State = m.failures, m.barrier, m.traces, m.data
			if m.expect != nil {
				l.Expect = m.expect.Live(res.Now)
			}
		}
		for range count {
			l.Key, l.Token = r.str(), token
			token++
			res.Leases = append(res.Leases, l)
		}
	}
}

func (r *reader) id() uint64 {
	s := r.str()
	if len(s) != 8 {
		r.fail()
		return 0
	}
	return binary.BigEndian.Uint64([]byte(s))
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

func (r *reader) barrier(s string) workqueue.Barrier {
	var out workqueue.Barrier
	for _, line := range split(s) {
		f := strings.SplitN(line, " ", 3)
		if len(f) != 3 {
			r.fail()
			return nil
		}
		epoch, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			r.fail()
			return nil
		}
		out = append(out, workqueue.Mark{Collection: f[0], Epoch: epoch, RV: f[2]})
	}
	slices.SortFunc(out, func(a, b workqueue.Mark) int { return cmp.Compare(a.Collection, b.Collection) })
	return out
}

func (r *reader) expect(owner string, token uint64, storedAt int64, names string) *expectations.Set {
	e := &expectations.Set{Owner: owner, Token: token, StoredAt: storedAt}
	for _, n := range split(names) {
		switch {
		case strings.HasPrefix(n, "+"):
			e.Creates = append(e.Creates, n[1:])
		case strings.HasPrefix(n, "-"):
			e.Deletes = append(e.Deletes, n[1:])
		default:
			r.fail()
		}
	}
	return e
}
