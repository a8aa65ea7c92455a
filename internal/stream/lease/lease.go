package lease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

const (
	// leaseBucket holds one key per lease.
	leaseBucket = "deltaplane-leases"
	// leaseSubject and a lease's name make the subject that tells those who wait to look at the lease
	// now.
	leaseSubject = "deltaplane.lease."
)

// What leases take of the server: a bucket, and subjects that are published and subscribed to.
var (
	Buckets  = []string{leaseBucket}
	Subjects = []string{aliveSubject + ">", leaseSubject + ">"}
)

// ConnectionName is the name of the connection that leases have for themselves, beside one of a
// name.
func ConnectionName(name string) string { return name + "-leases" }

// Config names a lease.
type Config struct {
	// Name of the lease, such as a collection's.
	Name string
	// Holder names this process.
	Holder string
	// Form says what the holder writes, so that those who wait can compare it with what they would
	// write.
	Form string
	// TTL is how long a silent holder keeps the lease; default 3 s. All that compete must use the
	// same.
	TTL time.Duration
	// PingTimeout is how long a holder may leave pings unanswered before the lease is taken from it;
	// default a third of the TTL, at most the TTL. A holder whose connection is gone is not waited
	// for. One that finds itself slow to answer is given longer.
	PingTimeout time.Duration
	// PingEvery is the time between pings; default a fifth of PingTimeout.
	PingEvery time.Duration
	// Floor, when set, returns a term that a granted one must exceed: the highest one seen in the log.
	Floor func() uint64
	// Delay, when set, returns for how long a lease that is free is left to those who are better
	// prepared.
	Delay func(Claim) time.Duration
	// Failed, when set, is told why the lease could be neither read nor taken, and when that is tried
	// again. It must not block.
	Failed func(err error, wait time.Duration)
	// Seen, when set, is told of every change of who holds the lease, and of each renewal that is
	// looked at. It must not block.
	Seen func(Claim)
}

func (c Config) withDefaults() Config {
	c.TTL = cmp.Or(c.TTL, 3*time.Second)
	c.PingTimeout = min(cmp.Or(c.PingTimeout, c.TTL/3), c.TTL)
	c.PingEvery = max(cmp.Or(c.PingEvery, c.PingTimeout/5), 10*time.Millisecond)
	if c.Floor == nil {
		c.Floor = func() uint64 { return 0 }
	}
	if c.Delay == nil {
		c.Delay = func(Claim) time.Duration { return 0 }
	}
	if c.Failed == nil {
		c.Failed = func(error, time.Duration) {}
	}
	if c.Seen == nil {
		c.Seen = func(Claim) {}
	}
	return c
}

// Claim is what a lease's holder says of itself. Those who wait need no clock of the holder's: they
// watch whether the claim changes.
type Claim struct {
	// Holder is empty when the lease is free; the other fields are then those of the last holder.
	Holder string `json:"holder"`
	// Form as in [Config]; Complete says that the log has held a complete list in that form since
	// nobody wrote another.
	Form     string `json:"form,omitempty"`
	Complete bool   `json:"complete,omitempty"`
	// Due says that a list is due all the same: the last one left something open.
	Due  bool   `json:"due,omitempty"`
	Term uint64 `json:"term"`
	// Acked is the highest acknowledged sequence, and Epoch the epoch, that the holder reported.
	Acked uint64 `json:"acked"`
	Epoch uint64 `json:"epoch"`
	Beat  uint64 `json:"beat"`
	// Process is the token under which the holder's process answers pings; empty when it cannot.
	Process string `json:"process,omitempty"`
	// PingTimeout that the holder asks for, in milliseconds, where that is more than those who wait
	// were configured with.
	PingTimeout int64 `json:"patience,omitempty"`
}

// Lease is the right to lead until Lost is closed.
type Lease struct {
	// Term is the fencing number: it grows with every grant.
	Term uint64
	// Acked is the highest acknowledged sequence, and Epoch the epoch, that the last holder reported.
	Acked, Epoch uint64
	// Form is the last holder's, empty when it is not known. Complete says that it was ours and that
	// the log held a complete list in it: without that, a complete list must be made and reported with
	// [Lease.Completed].
	Form     string
	Complete bool
	// Due says that the last holder owed a list.
	Due bool

	cfg         Config
	presence    *presence
	bucket      keeper
	connected   func() bool
	reconnected func() <-chan struct{}

	rev    uint64 // the newest known to be ours; of the one that runs: the tenure, then Release
	until  atomic.Pointer[time.Time]
	proved *link.Signal // the lease is valid for longer
	loops  sync.WaitGroup
	acked  atomic.Uint64
	epoch  atomic.Uint64
	whole  atomic.Bool
	owed   atomic.Bool
	kick   chan struct{} // cap 1; renew now
	lost   chan struct{}
	done   chan struct{}
	cancel context.CancelFunc
}

// Lost is closed when the lease was taken by somebody else, or is over by this process's own clock
// and there is nobody to learn from that it was renewed. As long as that may only be late to be
// known, it is not lost, but see [Lease.Hold].
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Hold returns once the lease is valid by this process's own clocks: less than the TTL has gone by,
// also while the machine was suspended, since the last renewal that is known to have arrived was
// sent. Nearly always that is at once. It fails with [link.ErrDeposed] when the lease was lost or
// released, however much of that time is left, and when ctx ends.
func (l *Lease) Hold(ctx context.Context) error {
	for {
		proved := l.proved.Wait()
		select {
		case <-l.lost:
			return fmt.Errorf("%w: lease %s is lost", link.ErrDeposed, l.cfg.Name)
		case <-l.done:
			return fmt.Errorf("%w: lease %s is released", link.ErrDeposed, l.cfg.Name)
		default:
		}
		if l.valid() {
			return nil
		}
		select {
		case <-proved:
		case <-l.lost:
		case <-l.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// valid reports whether the lease is ours by both clocks. The monotonic one stands still while the
// machine is suspended, when others do not; the wall clock may be set, which costs no more than the
// wait for the next renewal. Whether the lease is lost is for the monotonic one alone.
func (l *Lease) valid() bool { return link.Since(*l.until.Load()) < 0 }

// Report notes the epoch and the highest acknowledged sequence, to be stored with the next renewal;
// a new epoch is stored at once.
func (l *Lease) Report(epoch, acked uint64) {
	l.acked.Store(acked)
	if l.epoch.Swap(epoch) != epoch {
		l.tell()
	}
}

// Completed notes that the log holds a complete list in this holder's form, acknowledged.
func (l *Lease) Completed() {
	if !l.whole.Swap(true) {
		l.tell()
	}
}

// Owe notes whether a list is due, no matter who leads.
func (l *Lease) Owe(due bool) {
	if l.owed.Swap(due) != due {
		l.tell()
	}
}

// tell renews the lease now.
func (l *Lease) tell() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Release stops renewing and frees the lease, so that who waits need not wait for the TTL. It
// returns once nothing of the lease runs any more.
func (l *Lease) Release(ctx context.Context) error {
	l.cancel()
	<-l.done
	defer l.presence.leave(l)
	select {
	case <-l.lost:
		return nil
	default:
	}
	value, err := json.Marshal(Claim{
		Form: l.cfg.Form, Complete: l.whole.Load(), Due: l.owed.Load(), Term: l.Term, Acked: l.acked.Load(), Epoch: l.epoch.Load(),
	})
	if err != nil {
		return err
	}
	for rev := l.rev; ; {
		_, err = l.bucket.Update(ctx, l.cfg.Name, value, rev)
		if !errors.Is(err, kv.ErrConflict) {
			break
		}
		// It was taken by somebody else, or a renewal arrived whose answer was not waited for.
		e, getErr := l.bucket.Get(ctx, l.cfg.Name)
		if _, ours := l.holds(e); getErr != nil || !ours || e.Revision <= rev {
			return nil
		}
		rev = e.Revision
	}
	if err != nil {
		return fmt.Errorf("release lease %s: %w", l.cfg.Name, err)
	}
	l.presence.announce(l.cfg.Name)
	return nil
}

// holds returns an entry's claim, and whether it is this grant's.
func (l *Lease) holds(e kv.Entry) (Claim, bool) {
	var now Claim
	err := json.Unmarshal(e.Value, &now)
	return now, err == nil && now.Holder == l.cfg.Holder && now.Term == l.Term
}

// announce tells everybody who waits for the lease to look at it. Nothing depends on it but time.
func (p *presence) announce(lease string) {
	_ = p.c.NATS.Publish(leaseSubject+kv.EscapeKey(lease), nil)
}
