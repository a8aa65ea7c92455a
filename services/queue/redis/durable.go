package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// waiter is a command that waits for what was written on its connection.
type waiter struct {
	name string // WAIT or WAITAOF
	want int    // replicas, or disks
}

// waitMax bounds one command that waits. It is less than the client's limit for
// an answer.
const waitMax = time.Second

// waitLate is how much later than asked a server may tell that time is up: it
// looks ten times a second.
const waitLate = 200 * time.Millisecond

// command is the waiter's, bounded so that its answer comes before ctx ends.
func (w *waiter) command(ctx context.Context) []any {
	limit := waitMax
	if d, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(d)-waitLate)
	}
	ms := max(limit.Milliseconds(), 1) // zero would be for ever
	if w.name == "WAITAOF" {
		return []any{w.name, w.want, 0, ms}
	}
	return []any{w.name, w.want, ms}
}

// nothing is the waiter's command for nothing, to see that it is allowed.
func (w *waiter) nothing() []any {
	if w.name == "WAITAOF" {
		return []any{w.name, 0, 0, 1}
	}
	return []any{w.name, 0, 1}
}

// check says whether the durability was reached. When it was not, the transaction has
// been applied all the same; sent again, it is answered and waited for again.
func (w *waiter) check(reply *redis.Cmd) error {
	got, err := reply.Result()
	if err != nil {
		if _, ok := errors.AsType[redis.Error](err); ok {
			return short(fmt.Sprintf("%s failed: %v", w.name, err))
		}
		return err
	}
	if list, ok := got.([]any); ok && len(list) > 0 { // WAITAOF: this one's, and replicas'
		got = list[0]
	}
	n, _ := got.(int64)
	switch {
	case int(n) >= w.want:
		return nil
	case w.name == "WAITAOF":
		return short("the append-only file was not forced to disk in time")
	}
	return short(fmt.Sprintf("%d of %d replicas have answered", n, w.want))
}

// short says why a transaction that was applied is not durable yet.
type short string

func (s short) Error() string { return string(s) }

// Is makes it the outcome that it is.
func (s short) Is(target error) bool { return target == engine.ErrUnknown }

// wait is what transactions of a queue wait for at this node, nil for nothing, or why
// it cannot keep the queue's durability.
func (n *node) wait(cfg *workqueue.Config) (*waiter, error) {
	if cfg.Durability == workqueue.Memory {
		return nil, nil
	}
	if cfg.Durability == workqueue.Replicated {
		return &waiter{"WAIT", cfg.Replicas}, nil
	}
	f := n.facts.Load()
	switch {
	case !f.aof:
		return nil, fmt.Errorf("%w: appendonly of %s is no, DURABILITY_FSYNC needs yes", engine.ErrDurability, n.addr)
	case f.fsync == "always":
		return nil, nil
	case f.waitAOF:
		return &waiter{"WAITAOF", 1}, nil
	case f.fsync == "":
		return nil, fmt.Errorf("%w: appendfsync of %s cannot be checked, CONFIG GET is forbidden; allow it, or use Redis 7.2 or Valkey, which have WAITAOF", engine.ErrDurability, n.addr)
	}
	return nil, fmt.Errorf("%w: appendfsync of %s is %s, DURABILITY_FSYNC needs always, or Redis 7.2 or Valkey, which have WAITAOF",
		engine.ErrDurability, n.addr, f.fsync)
}

// durable refuses a durability that the store cannot keep. Every master must,
// for a slot can move.
func (e *Engine) durable(ctx context.Context, name string, cfg *workqueue.Config) error {
	if cfg.Durability == workqueue.Memory {
		return nil
	}
	for _, n := range *e.all.Load() {
		err := e.again(ctx, func() error {
			f, err := learn(ctx, n.client)
			if err != nil {
				return err
			}
			n.met(f) // settings may have been changed since it was connected to
			if cfg.Durability == workqueue.Replicated && f.replicas < cfg.Replicas {
				return fmt.Errorf("%w: %s has %d replicas, DURABILITY_REPLICATED needs %d", engine.ErrDurability, n.addr, f.replicas, cfg.Replicas)
			}
			w, err := n.wait(cfg)
			if w == nil || err != nil {
				return err
			}
			err = n.client.Do(ctx, w.nothing()...).Err()
			if _, ok := errors.AsType[redis.Error](err); ok {
				return fmt.Errorf("%w: %s of %s: %w", engine.ErrDurability, w.name, n.addr, err)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("queue %q: %w", name, err)
		}
	}
	return nil
}
