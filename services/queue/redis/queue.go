package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

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
