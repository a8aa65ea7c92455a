package redis

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// queue is one queue in Redis.
type queue struct {
	e          *Engine
	name       string
	keys, look []string // of turns, and of Items' own turns
	seq        uint64   // of the last turn
	conf       atomic.Pointer[conf]
	args       []any // reused by turns
}

// conf is a configuration and what of it every turn carries.
type conf struct {
	cfg     workqueue.Config
	version string
	program []any
}

func (q *queue) Config() workqueue.Config { return q.conf.Load().cfg }

// load reads the configuration in force, and the data id beside it.
func (q *queue) load(ctx context.Context) error {
	var got []any
	err := q.e.again(ctx, func() (err error) {
		got, err = q.e.client.HMGet(ctx, q.keys[0], "cfg", "ver").Result()
		return err
	})
	if err != nil {
		return err
	}
	blob, _ := got[0].(string)
	ver, _ := got[1].(string)
	if ver == "" {
		return fmt.Errorf("%w: %q", engine.ErrNoQueue, q.name)
	}
	c := &conf{version: ver}
	if err := json.Unmarshal([]byte(blob), &c.cfg); err != nil {
		return fmt.Errorf("configuration of queue %q: %w", q.name, err)
	}
	c.cfg = c.cfg.WithDefaults()
	c.program = program(c.cfg.Limiter, nil)
	q.conf.Store(c)
	return q.e.identify(ctx)
}

// Partitions implements engine.Queue.
func (q *queue) Partitions() []engine.Partition { return []engine.Partition{q} }

// Turn implements engine.Partition.
func (q *queue) Turn(ctx context.Context, t *workqueue.Turn) (*workqueue.Result, error) {
	r, run, err := q.turn(ctx, t)
	if err != nil || len(r.Leases) == 0 || run == q.e.runID() {
		return r, err
	}
	// Another connection met a restarted Redis while this turn was under way in
	// the name of the old one: nobody may have what it leased. The next turn
	// begins the pause.
	back := &workqueue.Turn{}
	for _, l := range r.Leases {
		back.Ops = append(back.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Release})
	}
	r.Leases = nil
	after, _, err := q.turn(ctx, back)
	if err != nil {
		return r, nil //nolint:nilerror // the turn was applied; what it leased expires
	}
	r.Counts, r.NextDue = after.Counts, after.NextDue
	return r, nil
}

// turn is Turn that also tells in the name of which run of Redis it was done.
func (q *queue) turn(ctx context.Context, t *workqueue.Turn) (*workqueue.Result, string, error) {
	q.seq++
	blob, args, err := q.run(ctx, q.keys, q.e.server, q.seq, t, q.args)
	run, _ := args[runAt].(string)
	clear(args)
	q.args = args[:0]
	if err != nil {
		return nil, run, err
	}
	r, err := decodeTurn(blob, t.Ops)
	return r, run, err
}

// runAt is the place of Redis' run id in the script's arguments.
const runAt = 3

// minAttempt is the least time worth beginning another attempt with.
const minAttempt = 100 * time.Millisecond

// run sends a turn until it is surely applied or refused, or time is up.
func (q *queue) run(ctx context.Context, keys []string, server string, seq uint64, t *workqueue.Turn, args []any) (string, []any, error) {
	ctx, cancel := context.WithTimeout(ctx, q.e.cfg.GiveUp)
	defer cancel()
	wait := 5 * time.Millisecond
	maybe := false
	for {
		args = q.write(args[:0], server, seq, maybe, t)
		blob, err := q.e.client.EvalSha(ctx, q.e.turnSHA, keys, args...).Text()
		f, err := judge(err)
		switch f {
		case applied:
			return blob, args, nil
		case refused:
			return "", args, err
		case reload:
			if err := q.e.client.ScriptLoad(ctx, turnLua).Err(); err != nil {
				if f, err := judge(err); f == refused {
					return "", args, err
				}
			}
		case stale:
			if err := q.load(ctx); errors.Is(err, engine.ErrNoQueue) {
				return "", args, err
			}
		case unknown:
			maybe = true
		}
		if deadline, _ := ctx.Deadline(); f != unknown && time.Until(deadline) < wait+minAttempt {
			cancel() // an attempt cut off would make the outcome unknown
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, 250*time.Millisecond)
		case <-ctx.Done():
			if maybe {
				return "", args, fmt.Errorf("turn of queue %q: %w", q.name, errors.Join(engine.ErrUnknown, ctx.Err()))
			}
			return "", args, fmt.Errorf("turn of queue %q: %w: %w", q.name, engine.ErrUnavailable, err)
		}
	}
}

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

// Status implements engine.Partition.
func (q *queue) Status(ctx context.Context) (engine.Status, error) {
	var (
		meta              *redis.SliceCmd
		delayed, leased   *redis.IntCmd
		dead              *redis.IntCmd
		heads             [workqueue.Levels]*redis.StringCmd
		now               *redis.TimeCmd
		st, noQueue, seen = engine.Status{}, engine.ErrNoQueue, []string(nil)
	)
	err := q.e.again(ctx, func() error {
		_, err := q.e.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			meta = p.HMGet(ctx, q.keys[0], "ver", "closed", "ready", "dirty")
			delayed, leased, dead = p.ZCard(ctx, q.keys[2]), p.ZCard(ctx, q.keys[4]), p.HLen(ctx, q.keys[11])
			for l := range heads {
				heads[l] = p.LIndex(ctx, q.keys[15+l], 0)
			}
			now = p.Time(ctx)
			return nil
		})
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	if err != nil {
		return st, err
	}
	m := meta.Val()
	if len(m) != 4 || m[0] == nil {
		return st, fmt.Errorf("%w: %q", noQueue, q.name)
	}
	num := func(v any) int { s, _ := v.(string); n, _ := strconv.Atoi(s); return n }
	st.Closed = m[1] == "1"
	st.Counts = workqueue.Counts{
		Ready: num(m[2]), Dirty: num(m[3]), Delayed: int(delayed.Val()), Processing: int(leased.Val()), Dead: int(dead.Val()),
	}
	st.Now = now.Val().Add(q.e.cfg.Skew()).UnixMicro()
	for _, h := range heads {
		if h.Val() != "" {
			seen = append(seen, h.Val())
		}
	}
	if len(seen) == 0 {
		return st, nil
	}
	recs, err := q.e.client.HMGet(ctx, q.keys[1], seen...).Result()
	if err != nil {
		return st, classify(err)
	}
	for _, r := range recs {
		// '>BBHdd': kind, level, attempt, added, ready.
		if s, _ := r.(string); len(s) == 20 && s[0] == 1 {
			at := int64(math.Float64frombits(binary.BigEndian.Uint64([]byte(s[12:20]))))
			if st.OldestReady == 0 || at < st.OldestReady {
				st.OldestReady = at
			}
		}
	}
	return st, nil
}

// Items implements engine.Partition. The cursor is the place in one of three
// scans: of keys that wait or are held, of delayed keys, of dead keys.
func (q *queue) Items(ctx context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error) {
	scan, at := byte('s'), uint64(0)
	if cursor != "" {
		n, err := strconv.ParseUint(cursor[1:], 10, 64)
		if err != nil || !strings.ContainsRune("sdx", rune(cursor[0])) {
			return nil, "", engine.ErrCursor
		}
		scan, at = cursor[0], n
	}
	var out []workqueue.Item
	for len(out) < limit {
		names, next, err := q.scan(ctx, scan, at, limit)
		if err != nil {
			return nil, "", err
		}
		items, err := q.inspect(ctx, names)
		if err != nil {
			return nil, "", err
		}
		for _, it := range items {
			here := map[byte]bool{
				's': it.State == workqueue.Ready || it.State == workqueue.Processing || it.State == workqueue.Dirty,
				'd': it.State == workqueue.Waiting,
				'x': it.State == workqueue.Buried,
			}[scan] // a key is reported by one scan only
			if here && (state == workqueue.Idle || it.State == state) {
				out = append(out, it)
			}
		}
		if at = next; at != 0 {
			continue
		}
		switch scan {
		case 's':
			scan = 'd'
		case 'd':
			scan = 'x'
		default:
			return out, "", nil
		}
	}
	return out, string(scan) + strconv.FormatUint(at, 10), nil
}

func (q *queue) scan(ctx context.Context, scan byte, at uint64, limit int) (names []string, next uint64, err error) {
	err = q.e.again(ctx, func() error {
		var flat []string
		var err error
		switch scan {
		case 's':
			flat, next, err = q.e.client.HScan(ctx, q.keys[1], at, "", int64(limit)).Result()
		case 'd':
			flat, next, err = q.e.client.ZScan(ctx, q.keys[2], at, "", int64(limit)).Result()
		default:
			flat, next, err = q.e.client.HScan(ctx, q.keys[11], at, "", int64(limit)).Result()
		}
		names = names[:0]
		for i := 0; i+1 < len(flat); i += 2 {
			names = append(names, flat[i])
		}
		return err
	})
	return names, next, err
}

// inspect looks at keys in turns of its own, beside the queue's.
func (q *queue) inspect(ctx context.Context, names []string) ([]workqueue.Item, error) {
	if len(names) == 0 {
		return nil, nil
	}
	t := &workqueue.Turn{}
	for _, n := range names {
		t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpInspect, Key: n})
	}
	blob, _, err := q.run(ctx, q.look, q.e.server+"i", uint64(time.Now().UnixNano()), t, nil)
	if err != nil {
		return nil, err
	}
	res, err := decodeTurn(blob, t.Ops)
	if err != nil {
		return nil, err
	}
	out := make([]workqueue.Item, 0, len(names))
	for _, r := range res.Replies {
		out = append(out, *r.Item)
	}
	return out, nil
}
