package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/services/queue/engine"
)

//go:embed lua/probe.lua
var probeLua string

var probeScript = redis.NewScript(probeLua)

// Check reaches every master and refuses one that would break the queue's
// promises: too old, of another topology than configured, a replica, without
// scripts, with an ACL that forbids what turns do, or one that evicts keys.
func (e *Engine) Check(ctx context.Context) error {
	if err := e.identify(ctx); err != nil {
		return err
	}
	for _, n := range *e.all.Load() {
		if err := e.checkEviction(ctx, n); err != nil {
			return err
		}
		if err := e.again(ctx, func() error { return n.load(ctx) }); err != nil {
			return err
		}
	}
	return e.probe(ctx)
}

// load has a node know the turn's script, once in each of its runs.
func (n *node) load(ctx context.Context) error {
	f := n.facts.Load()
	if f != nil && f.loaded.Load() {
		return nil
	}
	if err := n.client.ScriptLoad(ctx, turnLua).Err(); err != nil {
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

func (e *Engine) checkEviction(ctx context.Context, n *node) error {
	policy, err := n.client.ConfigGet(ctx, "maxmemory-policy").Result()
	switch p := policy["maxmemory-policy"]; {
	case err != nil:
		if _, ok := errors.AsType[redis.Error](err); !ok {
			return classify(err)
		}
		e.warned.Do(func() {
			e.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "maxmemory-policy cannot be read, it must be noeviction", slog.Any("error", err))
		})
	case p != "" && p != "noeviction" && !e.cfg.AllowEviction:
		return fmt.Errorf("%w: maxmemory-policy is %s, must be noeviction", engine.ErrEviction, p)
	case p != "" && p != "noeviction":
		e.warned.Do(func() {
			e.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "redis may evict keys", slog.String("reason", p))
		})
	}
	return nil
}
