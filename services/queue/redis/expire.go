package redis

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

var expireScript = redis.NewScript(expireLua)

// partGoneFor is how long it is known of a partition but the first that it
// expired: until the first one has, or the queue turned out to be used.
const partGoneFor = 10 * time.Minute

// ended is the mark of a partition that an expiry which broke off has ended.
const ended = "-"

// Idle implements engine.Engine.
func (e *Engine) Idle(ctx context.Context, name string) (engine.Idle, error) {
	first, err := e.stored(ctx, name, 1)
	if err != nil {
		return engine.Idle{}, err
	}
	if first[0].gone != "" {
		return engine.Idle{}, fmt.Errorf("%w: %q", engine.ErrDeleted, name)
	}
	if first[0].version == "" {
		return engine.Idle{}, fmt.Errorf("%w: %q", engine.ErrNoQueue, name)
	}
	var cfg workqueue.Config
	if err := json.Unmarshal([]byte(first[0].blob), &cfg); err != nil {
		return engine.Idle{}, fmt.Errorf("configuration of queue %q: %w", name, err)
	}
	out := engine.Idle{For: math.MaxInt64, Empty: true}
	marks := make([]string, cfg.WithDefaults().Partitions)
	for part := range marks {
		st, used, err := e.used(ctx, name, part)
		if err != nil {
			return engine.Idle{}, err
		}
		if used == 0 {
			marks[part] = ended
			continue
		}
		c := st.Counts
		out.Empty = out.Empty && c.Ready+c.Delayed+c.Processing+c.Dead == 0 && st.HeldUntil == 0
		marks[part] = strconv.FormatInt(used, 10)
		out.For = min(out.For, time.Duration(max(st.Now-used, 0))*time.Microsecond)
	}
	out.Mark = strings.Join(marks, " ")
	return out, nil
}

// used is when a partition was used last, zero when it has expired, and what it holds.
func (e *Engine) used(ctx context.Context, name string, part int) (st engine.Status, used int64, err error) {
	var control *redis.StringCmd
	var idle *redis.StringCmd
	var now *redis.TimeCmd
	names := configureKeys(e.cfg.Prefix, name, part)
	err = e.again(ctx, func() error {
		n, err := e.place.node(ctx, names[0])
		if err != nil {
			return err
		}
		_, err = n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			control, idle, now = pipe.HGet(ctx, names[1], ""), pipe.HGet(ctx, names[0], "idle"), pipe.Time(ctx)
			return nil
		})
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return st, 0, err
	case control.Val() == "" && idle.Val() != "":
		return st, 0, nil
	case control.Val() == "":
		return st, 0, fmt.Errorf("%w: %q", engine.ErrNoQueue, name)
	}
	st.Now = now.Val().Add(e.skew()).UnixMicro()
	run, used, err := readControl(control.Val(), &st)
	if err != nil {
		return st, 0, err
	}
	_, offset, _ := strings.Cut(run, " ")
	if off, err := strconv.ParseInt(offset, 10, 64); err == nil {
		st.Now += off
	}
	return st, used, nil
}

// Keep implements engine.Engine, in the first partition.
func (e *Engine) Keep(ctx context.Context, name string) error {
	kept, err := e.step(ctx, name, 0, "keep", "", "")
	if err == nil && !kept {
		_, err = e.first(ctx, name)
	}
	return err
}

// Expire implements engine.Engine. It seals the partitions one after the other, so
// that they take no more transactions. Then it ends them, the first one last, and
// with it the queue. A caller that meets an ended partition makes it again, sealed.
// A caller that meets a sealed one keeps the first partition before it uses the
// sealed one ([queue.wanted]): the first one then does not end.
func (e *Engine) Expire(ctx context.Context, name string, seen engine.Idle) error {
	marks := strings.Fields(seen.Mark)
	if len(marks) == 0 || marks[0] == ended {
		return fmt.Errorf("%w: %q", engine.ErrNoQueue, name)
	}
	used := func() error { return fmt.Errorf("%w: %q", engine.ErrInUse, name) }
	if len(marks) == 1 {
		done, err := e.step(ctx, name, 0, "expire", "", marks[0])
		if err == nil && !done {
			err = used()
		}
		if err != nil {
			return err
		}
		e.forget(name)
		return e.unlist(ctx, name)
	}
	id := strings.ToLower(rand.Text()[:12])
	undo := func(err error) error {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.GiveUp)
		defer cancel()
		for part := range marks { // who finds one sealed does it else
			_, _ = e.step(after, name, part, "unseal", id, "")
		}
		return err
	}
	for part, mark := range marks {
		done, err := e.step(ctx, name, part, "seal", id, mark)
		if err == nil && !done {
			err = used()
		}
		if err != nil {
			return undo(err)
		}
	}
	for part := range slices.Backward(marks) {
		done, err := e.step(ctx, name, part, "end", id, "")
		if err == nil && !done {
			err = used()
		}
		if err != nil {
			return undo(err)
		}
	}
	e.forget(name)
	return e.unlist(ctx, name)
}

// step does a step of the expiry in one partition.
func (e *Engine) step(ctx context.Context, name string, part int, what, id, mark string) (done bool, err error) {
	names := append([]string{metaKey(e.cfg.Prefix, name, part)}, keys(e.cfg.Prefix, name, part, e.server)...)
	note := goneFor
	if part > 0 {
		note = partGoneFor
	}
	err = e.again(ctx, func() error {
		n, err := e.place.node(ctx, names[0])
		if err != nil {
			return err
		}
		done, err = expireScript.Run(ctx, n.client, names, what, id, mark, note.Milliseconds(), e.skew().Microseconds()).Bool()
		return err
	})
	return done, err
}

// wanted has partitions take transactions that were sealed: by an expiry that is under
// way or broke off, or because they were just made. The first one is kept before
// that, so that no transaction is done in a partition of a queue that is gone. A seal of
// another time stays, and is found by the next transaction: the expiry whose it is, or
// that ended the partition before it was made again, may have begun after the first
// one was kept.
func (q *queue) wanted(ctx context.Context, all []stored, missing []error) error {
	var sealed []int
	for part, s := range all {
		if s.seal != "" && missing[part] == nil {
			sealed = append(sealed, part)
		}
	}
	if len(sealed) == 0 || missing[0] != nil {
		return nil
	}
	if err := q.e.Keep(ctx, q.name); err != nil {
		return err
	}
	for _, part := range sealed {
		if part == 0 {
			continue
		}
		if _, err := q.e.step(ctx, q.name, part, "keep", all[part].seal, ""); err != nil {
			return err
		}
	}
	return nil
}
