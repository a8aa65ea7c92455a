package lease

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// Elections gives out the leases that a process asks for.
type Elections struct {
	c *link.Conn

	mu       sync.Mutex
	presence *presence // made when the first lease is asked for; guarded by mu
	closed   bool      // guarded by mu
}

// New makes the elections of a process; nothing is connected before the first lease.
func New(c *link.Conn) *Elections { return &Elections{c: c} }

// apart is this process on a second connection to the same servers. Leases and pings use it, so
// that they do not wait behind the appends of a log that has become slow: a leader that is merely
// slow to write would lose its lease and with it the watch.
func (e *Elections) apart(ctx context.Context) (*presence, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nats.ErrConnectionClosed
	}
	if e.presence == nil {
		cfg := e.c.Config
		cfg.Name = ConnectionName(cfg.Name)
		c, err := link.Dial(ctx, cfg)
		if err != nil {
			return nil, err
		}
		e.presence = newPresence(c)
	}
	return e.presence, nil
}

// Close ends the second connection; leases that are held are lost, and no others are given.
func (e *Elections) Close() {
	e.mu.Lock()
	e.closed = true
	p := e.presence
	e.mu.Unlock()
	if p != nil {
		p.c.Close()
	}
}

// Lease waits until the lease is free, its holder is gone, or silent for too long, takes it and
// keeps renewing it. The term is the revision of the write that took it, or more when Floor asks
// for it, so it grows even if the bucket was lost. It returns only on success, when ctx ends, or
// when no connection for leases can be made.
//
// A holder is gone when the server knows nobody who answers its pings; it is silent when it has not
// answered for the ping timeout, or, whatever it answers, has not renewed for the TTL. Taking the
// lease from somebody who lives costs a change of leader and nothing else: the log is fenced.
func (e *Elections) Lease(ctx context.Context, cfg Config) (*Lease, error) {
	p, err := e.apart(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", cfg.Name, err)
	}
	k := &contest{presence: p, cfg: cfg.withDefaults(), notice: make(chan struct{}, 1), process: p.present(ctx), connected: p.c.Healthy}
	sub, err := p.c.NATS.Subscribe(leaseSubject+kv.EscapeKey(cfg.Name), func(*nats.Msg) {
		select {
		case k.notice <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = sub.Unsubscribe()
		if k.peer != nil {
			p.part(k.peer)
		}
	}()
	for {
		l, err := k.try(ctx)
		switch {
		case ctx.Err() != nil:
			if l != nil {
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				defer cancel()
				_ = l.Release(last)
			}
			return nil, ctx.Err()
		case err == nil && l != nil:
			return l, nil
		case err == nil:
			err = k.wait(ctx)
		default:
			k.bucket = nil
			p.c.Config.Log.Debug("lease cannot be read", slog.String("lease", cfg.Name), slog.String("error", err.Error()))
			k.cfg.Failed(err, contestPause)
			err = k.pause(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
}
