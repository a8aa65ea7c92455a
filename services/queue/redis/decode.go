package redis

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
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

// isArray says whether an array comes next.
func (r *reader) isArray() bool {
	return len(r.b) > 0 && (r.b[0]&0xf0 == 0x90 || r.b[0] == 0xdc || r.b[0] == 0xdd)
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

const (
	replyWidth = 4
	leaseWidth = 8
	extraWidth = 5
	itemWidth  = 14
)

// decodeTurn reads the script's answer to a turn of the given operations.
func decodeTurn(blob string, ops []workqueue.Op) (*workqueue.Result, error) {
	r := &reader{b: blob}
	if r.array() != 14 {
		r.fail()
	}
	res := &workqueue.Result{Now: r.num(), NextDue: r.num()}
	res.Counts = workqueue.Counts{Ready: int(r.num()), Delayed: int(r.num()), Processing: int(r.num()), Dirty: int(r.num()), Dead: int(r.num())}
	res.Added, res.Retried, res.Promoted, res.Expired = int(r.num()), int(r.num()), int(r.num()), int(r.num())
	if n := r.array(); n != len(ops) {
		r.fail()
	}
	res.Replies = make([]workqueue.Reply, len(ops))
	for i := range res.Replies {
		if !r.isArray() {
			res.Replies[i].Status = workqueue.Status(r.num())
			continue
		}
		if r.array() != replyWidth {
			r.fail()
		}
		res.Replies[i] = workqueue.Reply{Status: workqueue.Status(r.num()), Requeues: int(r.num()), ReadyAt: r.num(), Deadline: r.num()}
	}
	for range r.array() / 2 {
		i := int(r.num()) - 1
		if i < 0 || i >= len(ops) {
			r.fail()
			break
		}
		if ops[i].Kind == workqueue.OpInspect {
			res.Replies[i].Item = r.item(ops[i].Key)
		} else {
			res.Replies[i].Expect = r.expect(r.str())
		}
	}
	n := r.array()
	if n%leaseWidth != 0 {
		r.fail()
	}
	if n > 0 {
		res.Leases = make([]workqueue.Lease, 0, n/leaseWidth)
	}
	for range n / leaseWidth {
		l := workqueue.Lease{Take: int(r.num()), Key: r.str(), Token: uint64(r.num()), Deadline: res.Now + r.num(), AddedAt: r.num(), ReadyAt: r.num()}
		place := r.num()
		l.Level, l.Attempt = uint8(place>>16), int(place&0xffff)
		if !r.isArray() {
			r.num()
			res.Leases = append(res.Leases, l)
			continue
		}
		if r.array() != extraWidth {
			r.fail()
		}
		l.Requeues = int(r.num())
		l.Barrier, l.Traces = r.barrier(r.str()), split(r.str())
		if s := r.str(); s != "" {
			l.State = []byte(s)
		}
		l.Expect = r.expect(r.str())
		res.Leases = append(res.Leases, l)
	}
	if r.err == nil && r.b != "" {
		r.fail()
	}
	if r.err != nil {
		return nil, r.err
	}
	return res, nil
}

func (r *reader) item(key string) *workqueue.Item {
	if r.array() != itemWidth {
		r.fail()
	}
	it := &workqueue.Item{Key: key, State: workqueue.State(r.num()), Token: uint64(r.num()), Holder: r.str(), Deadline: r.num()}
	it.Requeues, it.Attempt, it.Level = int(r.num()), int(r.num()), uint8(r.num())
	it.AddedAt, it.ReadyAt, it.DelayedUntil = r.num(), r.num(), r.num()
	it.Barrier, it.StateBytes = r.barrier(r.str()), int(r.num())
	it.Expect, it.Reason = r.expect(r.str()), r.str()
	return it
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

func (r *reader) expect(s string) *expectations.Set {
	if s == "" {
		return nil
	}
	all := split(s)
	if len(all) < 3 {
		r.fail()
		return nil
	}
	e := &expectations.Set{Owner: all[0]}
	var err1, err2 error
	e.Token, err1 = strconv.ParseUint(all[1], 10, 64)
	e.StoredAt, err2 = strconv.ParseInt(all[2], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		r.err = fmt.Errorf("%w: %w", errReply, err)
		return nil
	}
	for _, n := range all[3:] {
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
