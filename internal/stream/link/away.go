package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// tries are the attempts to reach a server since the last one that succeeded.
type tries struct {
	mu    sync.Mutex
	fault error // of the last one; guarded by mu
}

// failed takes in an attempt, and reports whether it was the first.
func (t *tries) failed(err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.fault == nil
	t.fault = err
	return first
}

// reached takes in an attempt that succeeded, and reports whether others had failed.
func (t *tries) reached() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := t.fault != nil
	t.fault = nil
	return failed
}

func (t *tries) last() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fault
}

// refusal says that a server does not take what this side authenticates with.
func refusal(err error) bool {
	return slices.ContainsFunc([]error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired},
		func(is error) bool { return errors.Is(err, is) })
}

// Away is nil while the connection is up, and else names the servers and what the last attempt to
// reach one met with.
func (c *Conn) Away() error {
	if c.Healthy() {
		return nil
	}
	err := c.NATS.LastError() // of a server that answered and was not taken, or did not take us
	if err == nil {
		err = c.tries.last()
	}
	if err == nil {
		err = nats.ErrDisconnected
	}
	return fmt.Errorf("cannot reach NATS at %s: %w", hosts(c.Config.URL), err)
}

// hosts are those of a list of URLs, which may hold passwords.
func hosts(list string) string {
	var out []string
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		if u, err := url.Parse(one); err == nil {
			out = append(out, u.Host)
		}
	}
	return strings.Join(out, ",")
}

// remindEvery is how often it is said that no server is reached.
const remindEvery = 30 * time.Second

// remind goes on saying that no server is reached, until the connection is closed.
func (c *Conn) remind(closed <-chan nats.Status) {
	tick := time.NewTicker(remindEvery)
	defer tick.Stop()
	for {
		select {
		case <-closed:
			return
		case <-tick.C:
			if err := c.Away(); err != nil && !c.NATS.IsClosed() {
				c.Config.Log.Warn("cannot reach NATS yet", slog.String("error", err.Error()))
			}
		}
	}
}

// FollowHealth calls f with whether the connection is up: now, and at each change until ctx ends.
func (c *Conn) FollowHealth(ctx context.Context, f func(up bool)) {
	changes := c.NATS.StatusChanged()
	defer c.NATS.RemoveStatusListener(changes)
	up := c.Healthy()
	f(up)
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if now := c.Healthy(); now != up {
				up = now
				f(up)
			}
			if !open {
				return
			}
		}
	}
}
