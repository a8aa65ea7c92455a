package redis

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

//go:embed turn.lua
var turnLua string

// keys are the store's names of one queue's partition, in the script's order.
// They share a hash tag, so that a turn touches one slot of a Redis Cluster.
func keys(prefix, queue, server string) []string {
	tag := prefix + ":{" + queue + "/0}:"
	out := make([]string, 0, 16+workqueue.Levels)
	for _, n := range []string{
		"meta", "st", "dly", "dlv", "lease", "fail", "bar", "trc", "sav", "exp", "why", "dead", "stale", "bex", "rq:" + server,
	} {
		out = append(out, tag+n)
	}
	for l := range workqueue.Levels {
		out = append(out, tag+"rdy"+strconv.Itoa(l))
	}
	return append(out, tag+"eex")
}

// program writes a limiter as the script reads it: values first, then what
// combines them.
func program(l *backoff.Limiter, out []any) []any {
	us := func(d int64) string { return strconv.FormatFloat(float64(d)/1e3, 'g', -1, 64) }
	switch l.Kind {
	case backoff.Exponential:
		return append(out, "e", us(int64(l.Base)), us(int64(l.Max)))
	case backoff.FastSlow:
		return append(out, "f", us(int64(l.Fast)), us(int64(l.Slow)), strconv.Itoa(l.MaxFast))
	case backoff.Bucket:
		return append(out, "b", strconv.FormatFloat(l.Rate, 'g', -1, 64), strconv.Itoa(l.Burst))
	case backoff.MaxOf:
		for i := range l.Of {
			out = program(&l.Of[i], out)
		}
		return append(out, "m", strconv.Itoa(len(l.Of)))
	case backoff.MaxWait:
		return append(program(&l.Of[0], out), "w", us(int64(l.Max)))
	default:
		return append(out, "f", "0", "0", "0")
	}
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func dec[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// write puts a turn into the script's arguments.
func (q *queue) write(args []any, server string, seq uint64, maybe bool, t *workqueue.Turn) []any {
	c := q.conf.Load()
	args = append(args, strconv.FormatUint(seq, 36), flag(maybe), dec(q.e.cfg.Skew().Microseconds()), q.e.runID(), c.version,
		server, q.name, q.e.channel(),
		dec(c.cfg.LeaseFor.Microseconds()), dec(c.cfg.BarrierRetention.Microseconds()), dec(c.cfg.MaxRetries), "0", "0")
	const growsAt, programAt = 11, 12
	anyLimited, anyGrows := false, false
	args = append(args, dec(len(t.Takes)))
	for _, take := range t.Takes {
		args = append(args, take.Holder, dec(take.Max), dec(take.For))
	}
	args = append(args, dec(len(t.Ops)))
	for i := range t.Ops {
		var limited, grows bool
		args, limited, grows = appendOp(args, &t.Ops[i])
		anyLimited, anyGrows = anyLimited || limited, anyGrows || grows
	}
	args[growsAt] = flag(anyGrows)
	if anyLimited { // the program goes between, only when it is needed
		tail := append([]any(nil), args[programAt+1:]...)
		args[programAt] = dec(len(c.program))
		args = append(append(args[:programAt+1], c.program...), tail...)
	}
	return args
}

// appendOp writes one operation. It reports whether the operation charges the
// limiter and whether it makes the store grow.
func appendOp(args []any, op *workqueue.Op) (out []any, limited, grows bool) {
	more := op.More
	if more == nil {
		more = &workqueue.More{}
	}
	token := strconv.FormatUint(op.Token, 10)
	switch op.Kind {
	case workqueue.OpAdd:
		level := dec(int(op.Level))
		if op.Delay <= 0 && !op.Limited && len(more.Barrier) == 0 && op.Trace == "" {
			return append(args, "a", op.Key, level), false, true
		}
		return append(args, "A", op.Key, level, dec(max(op.Delay, 0)), flag(op.Last), flag(op.Limited), marks(more.Barrier), op.Trace), op.Limited, true
	case workqueue.OpSettle:
		plain := op.More == nil && !op.Relevel
		switch {
		case plain && op.Outcome == workqueue.Done:
			return append(args, "d", op.Key, token), false, false
		case plain && op.Outcome == workqueue.Forget:
			return append(args, "g", op.Key, token), false, false
		}
		level := "-1"
		if op.Relevel {
			level = dec(int(op.Level))
		}
		return append(args, "S", op.Key, token, dec(int(op.Outcome)), level, dec(op.Delay), more.Reason, marks(more.Barrier), marks(more.Wrote)),
			op.Outcome == workqueue.Retry, false
	case workqueue.OpExtend:
		return append(args, "x", op.Key, token, dec(op.For), flag(op.Shorten), dec(op.Known)), false, false
	case workqueue.OpForget:
		return append(args, "f", op.Key), false, false
	case workqueue.OpRequeues:
		return append(args, "n", op.Key), false, false
	case workqueue.OpSave:
		return append(args, "v", op.Key, token, more.Data), false, true
	case workqueue.OpExpect:
		return append(args, "e", op.Key, token, more.Owner, lines(more.Creates), lines(more.Deletes)), false, true
	case workqueue.OpObserve:
		return append(args, "o", op.Key, more.Owner, lines(more.Creates), lines(more.Deletes)), false, false
	case workqueue.OpUnexpect:
		return append(args, "u", op.Key), false, false
	case workqueue.OpInspect:
		return append(args, "i", op.Key), false, false
	case workqueue.OpClose:
		return append(args, "C"), false, false
	case workqueue.OpOpen:
		return append(args, "O"), false, false
	default:
		panic(fmt.Sprintf("queue: operation %d is not known to the script", op.Kind))
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
