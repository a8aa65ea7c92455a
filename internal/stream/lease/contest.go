package lease

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// contest is one wait for a lease.
type contest struct {
	presence *presence
	cfg      Config
	notice   chan struct{} // cap 1
	process  string        // the token of this one, empty when it cannot be pinged
	bucket   keeper
	entry    kv.Entry // as last read
	held     Claim
	seen     time.Time // when the entry was first read as it is
	free     time.Time // since when the lease could be taken; zero while it cannot
	peer     *peer     // the holder's process
	// connected says whether the server is at hand.
	connected func() bool
}

// try looks at the lease and takes it if that may be; nil, nil says to wait.
func (k *contest) try(ctx context.Context) (*Lease, error) {
	if err := k.look(ctx); err != nil {
		return nil, err
	}
	if !k.open() {
		k.free = time.Time{}
		return nil, nil
	}
	if k.free.IsZero() {
		k.free = time.Now()
	}
	if time.Since(k.free) < k.cfg.Delay(k.held) {
		return nil, nil
	}
	l, err := k.take(ctx)
	if errors.Is(err, kv.ErrConflict) {
		select {
		case k.notice <- struct{}{}: // look again
		default:
		}
		return nil, nil
	}
	return l, err
}

func (k *contest) look(ctx context.Context) error {
	if k.bucket == nil {
		bucket, err := kv.Open(ctx, k.presence.c, leaseBucket, 0)
		if err != nil {
			return err
		}
		k.bucket = bucket
	}
	e, err := k.bucket.Get(ctx, k.cfg.Name)
	if errors.Is(err, link.ErrNoJetStream) { // also what is said of a bucket that was deleted, which is made again
		bucket, again := kv.Open(ctx, k.presence.c, leaseBucket, 0)
		if again != nil {
			return again
		}
		k.bucket = bucket
		e, err = k.bucket.Get(ctx, k.cfg.Name)
	}
	switch {
	case errors.Is(err, kv.ErrNoKey):
		e = kv.Entry{}
	case err != nil:
		return err
	}
	if e.Revision != k.entry.Revision || k.seen.IsZero() {
		k.entry, k.seen, k.held = e, time.Now(), Claim{}
		_ = json.Unmarshal(e.Value, &k.held) // a broken value is a free lease
		k.cfg.Seen(k.held)
	}
	token := k.held.Process
	if k.mine() {
		token = ""
	}
	if k.peer != nil && k.peer.key.token != token {
		k.presence.part(k.peer)
		k.peer = nil
	}
	if k.peer == nil && token != "" {
		k.peer = k.presence.meet(ctx, token, k.cfg.PingEvery)
	}
	return nil
}

// mine says that the claim is one that this process could not release. A lease that somebody in
// this process still has is not.
func (k *contest) mine() bool {
	return !k.presence.holds(k.cfg.Name) && k.held.Process == k.presence.token && k.held.Holder == k.cfg.Holder
}

// open says whether the lease may be taken.
func (k *contest) open() bool {
	if k.held.Holder == "" || k.mine() || time.Since(k.seen) >= k.cfg.TTL {
		return true
	}
	return k.peer != nil && (k.peer.isGone() || k.peer.silence() >= k.pingTimeout())
}

func (k *contest) pingTimeout() time.Duration {
	return min(max(k.cfg.PingTimeout, time.Duration(k.held.PingTimeout)*time.Millisecond), k.cfg.TTL)
}

// wait returns when there is a reason to look again.
func (k *contest) wait(ctx context.Context) error {
	var changed <-chan struct{}
	if k.peer != nil {
		changed = k.peer.changed.Wait()
	}
	next := min(k.cfg.TTL/3, 2*time.Second)
	switch {
	case !k.free.IsZero():
		next = min(k.cfg.TTL/60, 50*time.Millisecond) // it is being left to others
	case time.Since(k.seen) > k.cfg.TTL/2:
		next = min(k.cfg.TTL/12, time.Second)
	}
	t := time.NewTimer(next)
	defer t.Stop()
	for {
		select {
		case <-changed:
			changed = k.peer.changed.Wait()
			if !k.open() {
				continue // it is silent, but not for long enough
			}
		case <-k.notice:
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	}
}

// contestPause is the wait after a lease could be neither read nor taken.
const contestPause = time.Second

func (k *contest) pause(ctx context.Context) error {
	t := time.NewTimer(contestPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.presence.c.Events.Wait():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// inherited is the ping timeout that a new holder asks for: half of what the last one
// asked for beyond what is configured. One that finds itself slow asks for more
// soon, and where terms are short nobody would ever ease it.
func (k *contest) inherited() int64 {
	least := k.cfg.PingTimeout.Milliseconds()
	if k.held.PingTimeout <= least {
		return 0
	}
	return (k.held.PingTimeout + least) / 2
}

func (k *contest) take(ctx context.Context) (*Lease, error) {
	began := time.Now()
	mine := Claim{
		Holder: k.cfg.Holder, Form: k.cfg.Form, Complete: k.held.Complete && k.held.Form == k.cfg.Form, Due: k.held.Due, Acked: k.held.Acked, Epoch: k.held.Epoch,
		PingTimeout: k.inherited(),
		Term:        max(k.held.Term, k.cfg.Floor(), k.entry.Revision) + 1, Process: k.process,
	}
	value, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	rev, err := k.bucket.Update(ctx, k.cfg.Name, value, k.entry.Revision)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &Lease{
		Term: mine.Term, Acked: k.held.Acked, Epoch: k.held.Epoch, Form: k.held.Form, Complete: mine.Complete, Due: mine.Due,
		cfg: k.cfg, presence: k.presence, bucket: k.bucket, connected: k.connected, reconnected: k.presence.c.Events.Wait,
		proved: link.NewSignal(), kick: make(chan struct{}, 1), lost: make(chan struct{}), done: make(chan struct{}), cancel: cancel,
	}
	l.whole.Store(mine.Complete)
	l.owed.Store(mine.Due)
	l.acked.Store(k.held.Acked)
	l.epoch.Store(k.held.Epoch)
	k.presence.hold(l)
	k.presence.announce(k.cfg.Name)
	t := newTenure(l, mine, rev, began)
	go t.run(run)
	return l, nil
}
