package redis

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/services/queue/engine"
)

//go:embed lua/probe.lua
var probeLua string

var probeScript = redis.NewScript(probeLua)

// Check reaches every master and refuses one that would break the queue's
// promises: too old, of another topology than configured, a replica, without
// scripts, or with an ACL that forbids what transactions do. For one that evicts
// keys or is full it returns [engine.ErrEviction] or [engine.ErrFull] when nothing
// else is wrong: such a master refuses adds and does everything else. Where some
// masters of a cluster are away and others are not, it returns [engine.ErrPartial].
func (e *Engine) Check(ctx context.Context) error {
	if err := e.identify(ctx); err != nil {
		return err
	}
	var limits error // it can be used all the same
	partial := *e.partial.Load()
	for _, n := range *e.all.Load() {
		if partial != nil && n.down.Load() {
			continue
		}
		err := e.again(ctx, func() error { return e.checkMemory(ctx, n) })
		if errors.Is(err, engine.ErrEviction) || errors.Is(err, engine.ErrFull) {
			limits, err = cmp.Or(limits, err), nil
		}
		if err == nil {
			err = e.again(ctx, func() error { return n.load(ctx) })
		}
		if err != nil {
			return err
		}
	}
	err := e.probe(ctx)
	if partial != nil && away(err) {
		err = nil // its node is
	}
	return cmp.Or(err, limits, partial)
}

// load has a node know the transaction's script, once in each of its runs.
func (n *node) load(ctx context.Context) error {
	f := n.facts.Load()
	if f != nil && f.loaded.Load() {
		return nil
	}
	if err := n.client.ScriptLoad(ctx, transactionLua).Err(); err != nil {
		return err
	}
	if f = n.facts.Load(); f != nil {
		f.loaded.Store(true)
	}
	return nil
}

// probe does what scripts do, once in each run of the node it comes to: the
// user's rules are the same on all.
func (e *Engine) probe(ctx context.Context) error {
	key := e.cfg.Prefix + ":{probe}:" + e.server
	return e.again(ctx, func() error {
		n, err := e.place.node(ctx, key)
		if err != nil {
			return err
		}
		f := n.facts.Load()
		if f == nil || f.probed.Load() {
			return nil
		}
		if err := probeScript.Run(ctx, n.client, []string{key, key + "l", key + "z", key + "s"}, e.channel(), e.server+" ").Err(); err != nil {
			return err
		}
		f.probed.Store(true)
		return nil
	})
}

// evicts is the error of a Redis with a policy other than noeviction.
func evicts(policy string) error {
	return fmt.Errorf("%w: maxmemory-policy is %s, must be noeviction", engine.ErrEviction, policy)
}

// checkMemory refuses a node that may evict keys, and says when it is full.
func (e *Engine) checkMemory(ctx context.Context, n *node) error {
	text, err := n.client.Info(ctx, "memory").Result()
	if err != nil {
		return err
	}
	info := fields(text)
	switch p := info["maxmemory_policy"]; {
	case p == "noeviction":
	case p == "":
		e.warned.Do(func() {
			e.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "maxmemory-policy is not in INFO, it must be noeviction")
		})
	case e.cfg.AllowEviction:
		e.warned.Do(func() {
			e.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "redis may evict keys", slog.String("reason", p))
		})
	default:
		return evicts(p)
	}
	most, _ := strconv.ParseUint(info["maxmemory"], 10, 64)
	used, _ := strconv.ParseUint(info["used_memory"], 10, 64)
	uncounted, _ := strconv.ParseUint(info["mem_not_counted_for_evict"], 10, 64)
	if most > 0 && used > most+uncounted {
		return fmt.Errorf("%w: %s uses %d bytes, its maxmemory is %d", engine.ErrFull, n.addr, used-uncounted, most)
	}
	return nil
}
