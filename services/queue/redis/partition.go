package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// partition is one partition of a queue. Its keys are in one slot.
type partition struct {
	q      *queue
	e      *Engine
	keys   []string
	conf   atomic.Pointer[conf]
	grants *grants
	clock  *estimate
	met    atomic.Pointer[string] // the run of Redis in which a transaction was done last
	tells  atomic.Bool            // the next transaction tells until when leases were granted: data was lost
	sender sender                 // of transactions
}

// conf is a configuration and what of it every transaction carries.
type conf struct {
	cfg         workqueue.Config
	version     string
	born        string // the version with which the partition's data began
	often, rare []byte
}

func newPartition(q *queue, part int) *partition {
	e := q.e
	return &partition{
		q: q, e: e,
		keys: keys(e.cfg.Prefix, q.name, part, e.server), grants: e.granted(q.name, part), clock: &e.granted(q.name, part).clock,
	}
}

// done is how a transaction was applied.
type done struct {
	blob string
	n    *node
	// sent and came are of the process' clock: between them it was applied.
	sent, came time.Duration
	corrected  *workqueue.Correction // of the clock, before it
	run        string                // in the name of which run of Redis, when it was sent first
	// tells: it was to tell until when leases were granted, if any were.
	tells bool
}

// Apply implements engine.Partition.
func (p *partition) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	r, d, err := p.apply(ctx, t)
	if err != nil || len(r.Leases) == 0 || d.run == d.n.run() {
		return r, err
	}
	// Another run of Redis was met while this transaction was under way in the name of
	// an older one, or it was answered by a Redis that only has it from there:
	// nobody may have what it leased. The next transaction begins the pause.
	back := &workqueue.Transaction{}
	for _, l := range r.Leases {
		back.Ops = append(back.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Release})
	}
	r.Leases = nil
	after, _, err := p.apply(ctx, back)
	if err != nil {
		return r, nil //nolint:nilerror // the transaction was applied; what it leased expires
	}
	r.Counts, r.NextDue = after.Counts, after.NextDue
	return r, nil
}

func (p *partition) apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, done, error) {
	longest := p.conf.Load().cfg.MaxLease
	young, asks := p.clock.young(p.e.clock(), longest)
	d, err := p.run(ctx, p.e.transactions.Add(1), t, &p.sender)
	if err != nil {
		return nil, d, err
	}
	r, off, err := decodeAnswer(d.blob, t)
	if err != nil {
		return nil, d, err
	}
	p.clock.learn(d.sent, d.came, r.Now, off)
	p.grants.note(p.e.clock(), r)
	r.Corrected = d.corrected
	if young > 0 && r.Counts.Processing > 0 { // by then leases expire
		at := r.Now + young.Microseconds()
		if r.NextDue == 0 || at < r.NextDue {
			r.NextDue = at
		}
	}
	if asks > 0 && r.NextDue != 0 { // by then others have looked
		r.NextDue = max(r.NextDue, r.Now+asks.Microseconds())
	}
	return r, d, nil
}

// left is what the next transaction tells of the leases granted here: until when they
// last, after data was lost or may be, else nothing, which is below zero.
func (p *partition) left(run string) time.Duration {
	if met := p.met.Load(); !p.tells.Load() && (met == nil || *met == run) {
		return -1
	}
	if left, some := p.grants.left(p.e.clock()); some {
		return left
	}
	return -1
}

// Start begins the pause that follows a restart of Redis, if it has not begun.
func (p *partition) Start(ctx context.Context) error {
	_, err := p.run(ctx, 0, &workqueue.Transaction{}, &sender{})
	return err
}

// answerTTL is how long the script keeps its last answer.
const answerTTL = 2 * time.Minute

// minAttempt is the least time worth beginning another attempt with.
const minAttempt = 100 * time.Millisecond

// run sends a transaction until it is surely applied, durable, or refused, or until
// time is up. A transaction with the number zero only looks: it is done beside the
// others, and again when its reply is lost.
func (p *partition) run(ctx context.Context, seq uint64, t *workqueue.Transaction, s *sender) (done, error) {
	ctx, cancel := context.WithTimeout(ctx, p.e.cfg.GiveUp)
	defer cancel()
	deadline, _ := ctx.Deadline()
	wait := attempt.Wait{First: 5 * time.Millisecond, Most: 250 * time.Millisecond}
	maybe := false
	var held error // why the transaction, applied, is not durable
	first := ""    // the run that may have applied it
	var corrected *workqueue.Correction
	began := time.Duration(0) // when it was sent that may have been applied
	for {
		sent := p.e.clock()
		if !maybe {
			began = sent
		}
		d, err := p.attempt(ctx, seq, maybe, t, s, nil)
		f, err := judge(err)
		switch f {
		case applied:
			d.sent, d.came, d.corrected = began, p.e.clock(), corrected
			if met := p.met.Load(); met == nil || *met != d.run {
				p.met.Store(&d.run)
			}
			if d.tells {
				p.tells.Store(false)
			}
			d.run = cmp.Or(first, d.run)
			return d, nil
		case refused:
			if maybe { // an earlier attempt may have been applied, and was not seen to be durable
				return d, fmt.Errorf("transaction of queue %q: %w", p.q.name, errors.Join(engine.ErrUnknown, err))
			}
			return d, err
		case reload:
			if err := d.n.client.ScriptLoad(ctx, transactionLua).Err(); err != nil {
				if f, err := judge(err); f == refused && !maybe {
					return d, err
				}
			}
		case untimely:
			if c, ok := errors.AsType[*clockError](err); ok {
				fixed, failed := (*workqueue.Correction)(nil), error(nil)
				if by := p.clock.refused(sent, p.e.clock(), c.now, c.off, p.conf.Load().cfg.MaxLease); by != 0 {
					fixed, failed = p.correct(ctx, by, c.off)
				}
				if failed != nil {
					_, err = judge(failed)
				} else if corrected = cmp.Or(fixed, corrected); ctx.Err() == nil {
					continue
				}
			}
		case stale:
			if err := p.q.reload(ctx); errors.Is(err, engine.ErrNoQueue) && !maybe {
				return d, err
			}
		case unknown:
			maybe, first = true, cmp.Or(first, d.run)
			if _, ok := errors.AsType[short](err); ok {
				held = err
			} else {
				p.e.place.moved(ctx)
			}
		case retry:
			if errors.Is(err, errMoved) {
				p.e.place.moved(ctx)
			}
		}
		least := minAttempt
		if held != nil {
			least += waitLate // or less would be waited for than before
		}
		pause := wait.Next()
		if time.Until(deadline) < pause+least {
			cancel() // an attempt cut off would make the outcome unknown, if it is not yet
		}
		if attempt.Sleep(ctx, pause) {
			continue
		}
		if held != nil {
			return d, fmt.Errorf("transaction of queue %q: %w: %w", p.q.name, engine.ErrUnknown, held)
		}
		if maybe {
			return d, fmt.Errorf("transaction of queue %q: %w", p.q.name, errors.Join(engine.ErrUnknown, err, ctx.Err()))
		}
		return d, fmt.Errorf("transaction of queue %q: %w: %w", p.q.name, engine.ErrUnavailable, err)
	}
}

// attempt sends a transaction once, and waits as long as the queue's durability asks
// for, on the same connection.
func (p *partition) attempt(ctx context.Context, seq uint64, maybe bool, t *workqueue.Transaction, s *sender, set *fix) (done, error) {
	n, err := p.e.place.node(ctx, p.keys[0])
	if err != nil {
		return done{}, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	if n.facts.Load() == nil { // a transaction is in the name of a run
		if err := meet(ctx, n); err != nil {
			return done{n: n}, notSent(err)
		}
	}
	c := p.conf.Load()
	d := done{n: n, run: n.run(), tells: p.tells.Load()}
	h := &head{
		seq: seq, ordered: seq != 0, skew: p.e.skew().Microseconds(), run: d.run, version: c.version, cfg: &c.cfg, left: p.left(d.run), fix: set,
	}
	young, asks := p.clock.young(p.e.clock(), c.cfg.MaxLease)
	h.young, h.asks = young > 0 || t.KeepLeases, asks > 0
	h.early, h.late, _ = p.clock.bounds(p.e.clock())
	packed, err := s.write(h, t)
	if err != nil {
		return d, err
	}
	w, err := n.wait(&c.cfg)
	if err != nil {
		return d, err
	}
	if w == nil || len(t.Ops) == 0 && len(t.Takes) == 0 {
		d.blob, err = n.client.EvalSha(ctx, p.e.transactionSHA, p.keys, packed, c.often, c.rare).Text()
		return d, err
	}
	if err := n.load(ctx); err != nil { // else WAIT would be waited for after a transaction that was not done
		return d, notSent(err)
	}
	var tx, reached *redis.Cmd
	_, _ = n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		tx = pipe.EvalSha(ctx, p.e.transactionSHA, p.keys, packed, c.often, c.rare)
		if maybe {
			// An answer given once more was written on another connection, and
			// WAIT is for what this one wrote last.
			pipe.PExpire(ctx, p.keys[keyAnswer], answerTTL)
		}
		reached = pipe.Do(ctx, w.command(ctx)...)
		return nil
	})
	if tx.Err() != nil {
		return d, tx.Err()
	}
	if d.blob, err = tx.Text(); err != nil {
		return d, err
	}
	return d, w.check(reached)
}
