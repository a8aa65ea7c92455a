package redis

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// Redis' clock may step, and a replica that is promoted may have another. So each
// partition keeps an offset to it. The process knows from its last transactions
// between which times of the partition the next one must come, because its own
// clock does not step. The script refuses a transaction that finds another time.
// Where the refusal shows a step, a transaction of its own corrects the offset, to
// the least time that can be true: no lease ends early then.

const (
	// drift is the share of a time that two clocks may differ by: one in so many.
	drift = 200
	// leastSlack is how much later than expected a transaction may come before it has to
	// be asked whether it was long on its way.
	leastSlack = 250 * time.Millisecond
	// asking is how long a process that has just come lets no delay end and asks the
	// others, which may know of a step, to look: at most the shortest lease time.
	asking = time.Second
)

// estimate is what this process knows of a partition's clock: what it is ahead
// of the process' own. It outlives the partition's data.
type estimate struct {
	mu    sync.Mutex
	known bool
	at    time.Duration // of the process' clock: lo and hi were true then
	lo    time.Duration
	hi    time.Duration
	off   int64         // the offset that the partition had
	slack time.Duration // how much later than expected a transaction may come
	since time.Duration // when the partition was met first
	met   bool
	own   bool // this process made the partition: nothing is older
	// Until yields, a partition that this process set back from the offset was
	// may be put forward by another process, which knows better then.
	yields time.Duration
	was    int64
}

// spread is between which times the partition's clock is ahead at a time. Mu
// must be held.
func (e *estimate) spread(at time.Duration) (lo, hi time.Duration) {
	d := max(at-e.at, 0) / drift
	return e.lo - d, e.hi + d
}

// young is how long this process does not know yet whether the clock stepped
// before it came: for one longest lease. Its transactions let no lease expire, and as long
// as it asks others no delay end.
func (e *estimate) young(at time.Duration, longest time.Duration) (left, asks time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unsure(at, longest), e.unsure(at, asking)
}

// unsure is young. Mu must be held.
func (e *estimate) unsure(at time.Duration, longest time.Duration) time.Duration {
	if e.own {
		return 0
	}
	if !e.met {
		return longest
	}
	return max(e.since+longest-at, 0)
}

// bounds are the first and the last microsecond at which a transaction that is sent
// now may find the partition's clock; false when nothing is known.
func (e *estimate) bounds(at time.Duration) (lo, hi int64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.known {
		return 0, 0, false
	}
	a, b := e.spread(at)
	return (at + a - leastSlack).Microseconds(), (at + b + max(e.slack, leastSlack)).Microseconds(), true
}

// learn takes in that a transaction, sent and answered at times of the process' clock,
// found the partition's clock at now. Of what is known and what is learned the
// narrower counts. A clock that fell back by less than the slack is followed,
// one that ran ahead is not: many small steps come to be a large one.
func (e *estimate) learn(sent, came time.Duration, now, off int64) {
	store := time.Duration(now) * time.Microsecond
	lo, hi := store-came, store-sent
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.met {
		e.met, e.since = true, sent
	}
	if a, b := e.spread(came); e.known && e.off == off {
		switch {
		case hi < a: // fell back
		case lo > b:
			lo, hi = b, b
		default:
			lo, hi = max(lo, a), min(hi, b)
		}
	}
	e.known, e.at, e.lo, e.hi, e.off, e.slack = true, came, lo, hi, off, 2*(came-sent)
}

// refused judges a transaction that found the clock at another time than it may be:
// by is what sets it right, zero when the transaction was merely long on its way, or
// when another process, which knows better, has set it: then the next transaction
// takes what there is. Where two processes disagree the later time stays.
func (e *estimate) refused(sent, came time.Duration, now, off int64, longest time.Duration) (by int64) {
	store := time.Duration(now) * time.Microsecond
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.known {
		return 0
	}
	lo, _ := e.spread(sent)
	_, hi := e.spread(came)
	by = (sent + lo - store).Microseconds()
	lost := e.yields > 0 && off == e.was // what this process did, in a failover
	follow := off != e.off && !lost && e.unsure(came, longest) > 0
	switch {
	case store >= sent+lo && store <= came+hi:
		e.slack = 2 * max(e.slack, came-sent)
		return 0
	case !follow && store < sent+lo: // so much time has gone by here, whatever others say
		return by
	case follow, off != e.off && !lost && came < e.yields:
		e.known = false
		return 0
	}
	e.yields, e.was = came+longest, off
	return by
}

// clockError is the script's refusal of a transaction for the time it found.
type clockError struct{ now, off int64 }

func (*clockError) Error() string { return "queue: the clock of redis is not where it should be" }

// correct sets a partition's clock right, which has the offset off. It is refused
// like any transaction when another process was first, or the clock stepped once more.
func (p *partition) correct(ctx context.Context, by, off int64) (*workqueue.Correction, error) {
	sent, t := p.e.clock(), &workqueue.Transaction{}
	d, err := p.attempt(ctx, 0, false, t, &sender{}, &fix{by, off})
	if err != nil {
		return nil, err
	}
	r, off, err := decodeAnswer(d.blob, t)
	if err != nil {
		return nil, err
	}
	p.clock.learn(sent, p.e.clock(), r.Now, off)
	p.e.steps.Add(1)
	p.e.cfg.Log.Warn("the clock of redis stepped: the queue's goes on as before", slog.String(telemetry.KeyQueue, p.q.name),
		slog.Duration(telemetry.KeyDuration, -time.Duration(by)*time.Microsecond))
	return r.Corrected, nil
}

// fix is what sets a partition's clock right, if it has the offset off.
type fix struct{ by, off int64 }

// ClockSteps is how often a partition's clock was set right by this process.
func (e *Engine) ClockSteps() int64 { return e.steps.Load() }

// made notes that this process made the partition between two times of its
// clock, when the partition's was at now.
func (e *estimate) made(sent, came time.Duration, now int64) {
	e.learn(sent, came, now, 0)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.own = true
}
