package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// leaseBucket holds one key per lease.
const leaseBucket = "deltaplane-leases"

// LeaseConfig names a lease.
type LeaseConfig struct {
	// Name of the lease, such as a collection's.
	Name string
	// Holder names this process.
	Holder string
	// TTL is how long a silent holder keeps the lease; default 3 s. All that compete must use the same.
	TTL time.Duration
	// Floor is a term every granted term must exceed: the highest one seen in the log.
	Floor uint64
}

// Lease is the right to lead until Lost is closed.
type Lease struct {
	// Term is the fencing number: it grows with every grant.
	Term uint64
	// Acked is the highest acknowledged sequence, and Epoch the epoch, that the last holder reported.
	Acked, Epoch uint64

	cfg    LeaseConfig
	bucket *Bucket
	log    *slog.Logger
	rev    uint64
	acked  atomic.Uint64
	epoch  atomic.Uint64
	lost   chan struct{}
	done   chan struct{}
	cancel context.CancelFunc
}

// claim is the lease's value. A standby needs no clock of the holder's: it watches whether the value changes.
type claim struct {
	Holder string `json:"holder"`
	Term   uint64 `json:"term"`
	Acked  uint64 `json:"acked"`
	Epoch  uint64 `json:"epoch"`
	Beat   uint64 `json:"beat"`
}

// Lease waits until the lease is free or its holder has been silent for the TTL, takes it and keeps renewing it. The term is the revision of
// the write that took it, or more when Floor asks for it, so it grows even if the bucket was lost. It returns only on
// success or when ctx ends.
func (c *Conn) Lease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	cfg.TTL = cmp.Or(cfg.TTL, 3*time.Second)
	var last Entry
	seen := time.Now()
	for {
		bucket, err := c.Bucket(ctx, leaseBucket, 0)
		for err == nil {
			var e Entry
			e, err = bucket.Get(ctx, cfg.Name)
			if errors.Is(err, ErrNoKey) {
				e, err = Entry{}, nil
			}
			if err != nil {
				break
			}
			var held claim
			_ = json.Unmarshal(e.Value, &held) // a broken value is a free lease
			if e.Revision != last.Revision {
				last, seen = e, time.Now()
			}
			if held.Holder == "" || time.Since(seen) >= cfg.TTL {
				var l *Lease
				if l, err = c.take(ctx, bucket, cfg, e.Revision, held); err == nil {
					return l, nil
				}
				if errors.Is(err, ErrConflict) {
					err = nil
				}
			}
			select {
			case <-time.After(cfg.TTL / 12):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c.cfg.Log.Warn("lease cannot be read", slog.String("lease", cfg.Name), slog.String("error", err.Error()))
		select {
		case <-time.After(time.Second):
		case <-c.events.wait():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *Conn) take(ctx context.Context, b *Bucket, cfg LeaseConfig, rev uint64, held claim) (*Lease, error) {
	began := time.Now()
	mine := claim{Holder: cfg.Holder, Acked: held.Acked, Epoch: held.Epoch, Term: max(held.Term, cfg.Floor, rev) + 1}
	value, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	rev, err = b.Update(ctx, cfg.Name, value, rev)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &Lease{
		Term: mine.Term, Acked: held.Acked, Epoch: held.Epoch, cfg: cfg, bucket: b, log: c.cfg.Log, rev: rev,
		lost: make(chan struct{}), done: make(chan struct{}), cancel: cancel,
	}
	l.acked.Store(held.Acked)
	l.epoch.Store(held.Epoch)
	go l.renew(run, mine, began)
	return l, nil
}

// Lost is closed when the lease could not be renewed in time, by this process's own clock, or was taken by somebody else.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Report notes the epoch and the highest acknowledged sequence, to be stored with the next renewal.
func (l *Lease) Report(epoch, acked uint64) {
	l.epoch.Store(epoch)
	l.acked.Store(acked)
}

// Release stops renewing and frees the lease, so that a standby need not wait for the TTL. It returns once nothing of the lease runs any
// more.
func (l *Lease) Release(ctx context.Context) error {
	l.cancel()
	<-l.done
	select {
	case <-l.lost:
		return nil
	default:
	}
	value, err := json.Marshal(claim{Term: l.Term, Acked: l.acked.Load(), Epoch: l.epoch.Load()})
	if err != nil {
		return err
	}
	if _, err := l.bucket.Update(ctx, l.cfg.Name, value, l.rev); err != nil && !errors.Is(err, ErrConflict) {
		return fmt.Errorf("release lease %s: %w", l.cfg.Name, err)
	}
	return nil
}

func (l *Lease) renew(ctx context.Context, mine claim, renewed time.Time) {
	defer close(l.done)
	tick := time.NewTicker(l.cfg.TTL / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		mine.Beat++
		mine.Acked, mine.Epoch = l.acked.Load(), l.epoch.Load()
		value, err := json.Marshal(mine)
		if err == nil {
			var rev uint64
			try, cancel := context.WithTimeout(ctx, l.cfg.TTL/2)
			if rev, err = l.bucket.Update(try, l.cfg.Name, value, l.rev); err == nil {
				l.rev, renewed = rev, began
			}
			cancel()
		}
		if errors.Is(err, ErrConflict) {
			// Our own renewal may have arrived although its answer did not.
			if e, getErr := l.bucket.Get(ctx, l.cfg.Name); getErr == nil {
				var now claim
				if json.Unmarshal(e.Value, &now) == nil && now.Holder == mine.Holder && now.Term == mine.Term {
					l.rev, err = e.Revision, nil
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, ErrConflict) || time.Since(renewed) >= l.cfg.TTL {
			l.log.Warn("lease lost", slog.String("lease", l.cfg.Name))
			close(l.lost)
			return
		}
	}
}
