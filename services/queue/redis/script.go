package redis

import (
	"embed"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

//go:embed lua/*.lua
var sources embed.FS

var (
	transactionLua = script("control", "base", "begin", "holders", "step", "record", "ops", "codes", "plain", "time", "lease", "audit", "finish")
	configureLua   = script("control", "configure")
	deleteLua      = script("control", "delete")
	expireLua      = script("control", "expire")
)

// script puts the parts of a script together, and into them what the program
// has to know too.
func script(parts ...string) string {
	var sb strings.Builder
	for _, p := range parts {
		b, err := sources.ReadFile("lua/" + p + ".lua")
		if err != nil {
			panic(err)
		}
		sb.Write(b)
	}
	return strings.NewReplacer(
		"ANSWER_MS", strconv.FormatInt(answerTTL.Milliseconds(), 10), "USE_US", strconv.FormatInt(engine.UseEvery.Microseconds(), 10),
	).Replace(sb.String())
}

// Places in what keys returns.
const (
	keyState = iota
	keyDelayed
	keyLeases
	keyExpiries
	keyStale
	keyHolders
	keyHolderTimes
	keyBackoff
	keyBackoffTimes
	keyAnswer
	keyReady // of level 0; the other levels follow
)

// keys are the store's names of one partition of a queue, in the order of the
// transaction's script. They share a hash tag, so that a transaction touches one slot of a
// Redis Cluster.
func keys(prefix, queue string, part int, server string) []string {
	tag := tag(prefix, queue, part)
	out := make([]string, 0, keyReady+workqueue.Levels)
	for _, n := range []string{"st", "dly", "lease", "gc", "stale", "hid", "hz", "bo", "boz", "rq:" + server} {
		out = append(out, tag+n)
	}
	for l := range workqueue.Levels {
		out = append(out, tag+"rdy"+strconv.Itoa(l))
	}
	return out
}

// configureKeys are the names that the configuring script takes.
func configureKeys(prefix, queue string, part int) []string {
	return []string{metaKey(prefix, queue, part), tag(prefix, queue, part) + "st"}
}

// metaKey is the name of the hash with a partition's configuration.
func metaKey(prefix, queue string, part int) string { return tag(prefix, queue, part) + "meta" }

func tag(prefix, queue string, part int) string {
	return prefix + ":{" + queue + "/" + strconv.Itoa(part) + "}:"
}

// constants are what a configuration puts into every transaction: what most transactions
// need, and what few do.
func constants(c *workqueue.Config, evictable bool, channel, notice string) (often, rare []byte) {
	var p packer
	p.num(c.MaxLease.Microseconds())
	p.num(c.BarrierRetention.Microseconds())
	p.num(int64(c.MaxRetries))
	p.flag(c.AbsorbDelays)
	p.flag(c.ReserveOnce)
	p.num(c.Aging.Microseconds())
	if d := c.Dispatch; d != nil {
		p.float(d.QPS)
		p.num(int64(d.Burst))
	} else {
		p.num(0)
		p.num(0)
	}
	p.num(c.MaxProcessing.Microseconds())
	p.num(c.LeaseFor.Microseconds())
	p.flag(evictable)
	p.num(int64(c.MaxDeliveries))

	var r packer
	r.str(channel)
	r.str(notice)
	r.num(c.Backoff.Initial.Microseconds())
	r.num(c.Backoff.Max.Microseconds())
	r.float(c.Backoff.Jitter)
	r.num(c.Backoff.ExpireAfter.Microseconds())
	var prog packer
	n := program(c.Limiter, &prog)
	r.array(n)
	return p, append(r, prog...)
}

// program writes a limiter as the script reads it, values first, then what
// combines them, and returns of how many elements that is. Times are in
// microseconds.
func program(l *backoff.Limiter, p *packer) int {
	us := func(d int64) { p.float(float64(d) / 1e3) }
	switch l.Kind {
	case backoff.Exponential:
		p.str("e")
		us(int64(l.Base))
		us(int64(l.Max))
		return 3
	case backoff.FastSlow:
		p.str("f")
		us(int64(l.Fast))
		us(int64(l.Slow))
		p.num(int64(l.MaxFast))
		return 4
	case backoff.Bucket:
		p.str("b")
		p.float(l.Rate)
		p.num(int64(l.Burst))
		return 3
	case backoff.MaxOf:
		n := 0
		for i := range l.Of {
			n += program(&l.Of[i], p)
		}
		p.str("m")
		p.num(int64(len(l.Of)))
		return n + 2
	case backoff.MaxWait:
		n := program(&l.Of[0], p)
		p.str("w")
		us(int64(l.Max))
		return n + 2
	default: // never a delay
		p.str("f")
		p.num(0)
		p.num(0)
		p.num(0)
		return 4
	}
}

// sender writes transactions. It is reused, so that a transaction costs few allocations.
type sender struct {
	tx, args packer
	runs     []int // code, how many, and so on
	toks     []byte
	nargs    int
}

// The codes of operations. Plain adds are their level, plain settlements
// plainSettle and the outcome less one; general[k] are the others.
const plainSettle = 8

var general = [...]int{
	workqueue.OpAdd: 10, workqueue.OpSettle: 11, workqueue.OpExtend: 12, workqueue.OpForget: 13, workqueue.OpRequeues: 14,
	workqueue.OpSave: 15, workqueue.OpExpect: 16, workqueue.OpObserve: 17, workqueue.OpUnexpect: 18, workqueue.OpInspect: 19,
	workqueue.OpClose: 20, workqueue.OpOpen: 21, workqueue.OpPause: 22, workqueue.OpResume: 23,
	workqueue.OpRetryNow: 24, workqueue.OpRevoke: 25, workqueue.OpDelete: 26,
	workqueue.OpBackoffGet: 27, workqueue.OpBackoffNext: 28, workqueue.OpBackoffReset: 29,
	workqueue.OpReserve: 31, workqueue.OpAdmit: 32, workqueue.OpAudit: 33,
	workqueue.OpPutBack: 34,
}

// head is what a transaction carries beside its operations.
type head struct {
	seq          uint64
	ordered      bool // a transaction of the queue's, not one beside them
	skew         int64
	run, version string
	cfg          *workqueue.Config
	left         time.Duration // until the last lease granted by this process ends; below zero: not told
	young        bool          // no lease expires
	asks         bool          // no delay ends either, and other servers are asked to look
	early, late  int64         // the first and last time it may find; zero for any
	fix          *fix          // what sets the clock right
}

// asksOthers is what a transaction has in place of young when it asks.
const asksOthers = 2

// write packs a transaction. The result is valid until the next call.
func (s *sender) write(h *head, t *workqueue.Transaction) ([]byte, error) {
	s.args, s.runs, s.toks, s.nargs = s.args[:0], s.runs[:0], s.toks[:0], 0
	grows := false
	for i := range t.Ops {
		op := &t.Ops[i]
		if op.Kind == 0 || int(op.Kind) >= len(general) {
			return nil, fmt.Errorf("queue: operation %d is not known to the script", op.Kind)
		}
		switch op.Kind {
		case workqueue.OpAdd, workqueue.OpSave, workqueue.OpExpect, workqueue.OpBackoffNext, workqueue.OpPutBack:
			grows = true
		}
		code := plain(op)
		if code >= plainSettle {
			s.toks = binary.BigEndian.AppendUint64(append(s.toks, 'L'), op.Token)
		} else if code < 0 {
			code = general[op.Kind]
			s.op(h.cfg, op)
		}
		if n := len(s.runs); n > 0 && s.runs[n-2] == code {
			s.runs[n-1]++
		} else {
			s.runs = append(s.runs, code, 1)
		}
	}

	p := s.tx[:0]
	p.str(strconv.FormatUint(h.seq, 36))
	p.flag(h.ordered)
	p.num(h.skew)
	p.str(h.run)
	p.str(h.version)
	p.flag(grows)
	if t.Away {
		p.array(1 + len(t.Reserved))
		p.num(int64(t.Admitted))
		for _, r := range t.Reserved {
			p.float(r.From)
		}
	} else {
		p.flag(false)
	}
	p.array(1 + len(t.Ops))
	p.str("") // the control record
	for i := range t.Ops {
		switch op := &t.Ops[i]; op.Kind {
		case workqueue.OpBackoffGet, workqueue.OpBackoffNext, workqueue.OpBackoffReset: // an id is no key
			p.str("")
		default:
			p.str(op.Key)
		}
	}
	p.array(len(s.runs))
	for _, n := range s.runs {
		p.num(int64(n))
	}
	p.head(len(s.toks))
	p = append(p, s.toks...)
	p.array(s.nargs)
	p = append(p, s.args...)
	p.array(3 * len(t.Takes))
	for i := range t.Takes {
		take := &t.Takes[i]
		p.str(take.Holder)
		p.num(int64(take.Max))
		p.num(h.cfg.Capped(take.For))
	}
	if h.left < 0 {
		p.flag(false)
	} else {
		p.num(h.left.Microseconds())
	}
	if h.asks {
		p.num(asksOthers)
	} else {
		p.flag(h.young)
	}
	if h.late == 0 {
		p.flag(false)
		p.flag(false)
	} else {
		p.num(h.early)
		p.num(h.late)
	}
	if h.fix != nil {
		p.num(h.fix.by)
		p.num(h.fix.off)
	}
	s.tx = p
	return p, nil
}

// plain is the code of an operation that needs nothing but key and token, -1 otherwise.
func plain(op *workqueue.Op) int {
	switch {
	case op.Kind == workqueue.OpAdd && op.Delay <= 0 && !op.Limited && op.Trace == "" && op.Level < workqueue.Levels &&
		(op.More == nil || len(op.More.Barrier) == 0):
		return int(op.Level)
	case op.Kind == workqueue.OpSettle && op.More == nil && !op.Relevel && (op.Outcome == workqueue.Done || op.Outcome == workqueue.Forget):
		return plainSettle + int(op.Outcome) - 1
	}
	return -1
}

var nothing workqueue.More

// op writes the arguments of an operation that is not plain.
func (s *sender) op(cfg *workqueue.Config, op *workqueue.Op) {
	more := op.More
	if more == nil {
		more = &nothing
	}
	str := func(v string) { s.nargs++; s.args.str(v) }
	num := func(v int64) { s.nargs++; s.args.num(v) }
	flag := func(v bool) { s.nargs++; s.args.flag(v) }
	id := func(v uint64) { s.nargs++; s.args.id(v) }
	switch op.Kind {
	case workqueue.OpAdd:
		num(int64(min(op.Level, workqueue.Levels-1)))
		num(max(op.Delay, 0))
		flag(op.Last)
		flag(op.Limited)
		if op.Once == 0 {
			flag(false)
		} else {
			id(op.Once)
		}
		str(marks(more.Barrier))
		s.nargs++
		s.args.trace(op.Trace)
	case workqueue.OpSettle:
		id(op.Token)
		num(int64(op.Outcome))
		if op.Relevel {
			num(int64(min(op.Level, workqueue.Levels-1)))
		} else {
			num(-1)
		}
		num(op.Delay)
		str(more.Reason)
		str(marks(more.Barrier))
		str(marks(more.Wrote))
	case workqueue.OpExtend:
		id(op.Token)
		num(min(op.For, cfg.MaxLease.Microseconds()))
		flag(op.Shorten)
		num(op.Known)
	case workqueue.OpSave:
		id(op.Token)
		str(string(more.Data))
	case workqueue.OpExpect:
		id(op.Token)
		str(more.Owner)
		str(lines(more.Creates))
		str(lines(more.Deletes))
	case workqueue.OpObserve:
		str(more.Owner)
		str(lines(more.Creates))
		str(lines(more.Deletes))
	case workqueue.OpBackoffGet, workqueue.OpBackoffReset:
		str(op.Key)
	case workqueue.OpBackoffNext:
		str(op.Key)
		num(op.Event)
		s.nargs++
		s.args.float(op.Random)
	case workqueue.OpReserve, workqueue.OpAdmit, workqueue.OpAudit:
		num(int64(op.Count))
	case workqueue.OpPutBack:
		num(int64(op.Outcome))
		num(int64(min(op.Level, workqueue.Levels-1)))
		num(max(op.Delay, 0))
		num(min(max(int64(op.Count), 0), 1<<30))
		str(marks(more.Barrier))
		str(string(more.Data))
		str(more.Reason)
		str(more.Owner)
		str(lines(more.Creates))
		str(lines(more.Deletes))
	}
}

func marks(b []workqueue.Mark) string {
	if len(b) == 0 {
		return ""
	}
	var sb strings.Builder
	for _, m := range b {
		sb.WriteString(m.Collection)
		sb.WriteByte(' ')
		sb.WriteString(strconv.FormatUint(m.Epoch, 10))
		sb.WriteByte(' ')
		sb.WriteString(m.RV)
		sb.WriteByte('\n')
	}
	return sb.String()
}

func lines(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, "\n") + "\n"
}
