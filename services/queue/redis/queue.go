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
	meta       string   // name of the hash with the configuration
	keys, look []string // of turns, and of Items' own turns
	seq        uint64   // of the last turn
	conf       atomic.Pointer[conf]
	sender     sender // of turns
}

// conf is a configuration and what of it every turn carries.
type conf struct {
	cfg         workqueue.Config
	version     string
	often, rare []byte
}

func (q *queue) Config() workqueue.Config { return q.conf.Load().cfg }

// load reads the configuration in force, and the data id beside it.
func (q *queue) load(ctx context.Context) error {
	var got []any
	err := q.e.again(ctx, func() (err error) {
		got, err = q.e.client.HMGet(ctx, q.meta, "cfg", "ver").Result()
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
	c.often, c.rare = constants(&c.cfg, q.e.channel(), q.e.server+" "+q.name)
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
	blob, run, err := q.run(ctx, q.keys, q.seq, t, &q.sender)
	if err != nil {
		return nil, run, err
	}
	r, err := decodeTurn(blob, t)
	return r, run, err
}

// minAttempt is the least time worth beginning another attempt with.
const minAttempt = 100 * time.Millisecond

// run sends a turn until it is surely applied or refused, or time is up. It
// also tells in the name of which run of Redis it did so last.
func (q *queue) run(ctx context.Context, keys []string, seq uint64, t *workqueue.Turn, s *sender) (string, string, error) {
	ctx, cancel := context.WithTimeout(ctx, q.e.cfg.GiveUp)
	defer cancel()
	wait := 5 * time.Millisecond
	maybe := false
	for {
		c, run := q.conf.Load(), q.e.runID()
		packed, err := s.write(&head{
			seq: seq, again: maybe, skew: q.e.cfg.Skew().Microseconds(), run: run, version: c.version, leaseFor: c.cfg.LeaseFor.Microseconds(),
		}, t)
		if err != nil {
			return "", run, err
		}
		blob, err := q.e.client.EvalSha(ctx, q.e.turnSHA, keys, packed, c.often, c.rare).Text()
		f, err := judge(err)
		switch f {
		case applied:
			return blob, run, nil
		case refused:
			return "", run, err
		case reload:
			if err := q.e.client.ScriptLoad(ctx, turnLua).Err(); err != nil {
				if f, err := judge(err); f == refused {
					return "", run, err
				}
			}
		case stale:
			if err := q.load(ctx); errors.Is(err, engine.ErrNoQueue) {
				return "", run, err
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
				return "", run, fmt.Errorf("turn of queue %q: %w", q.name, errors.Join(engine.ErrUnknown, ctx.Err()))
			}
			return "", run, fmt.Errorf("turn of queue %q: %w: %w", q.name, engine.ErrUnavailable, err)
		}
	}
}
