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
	for i, n := range *e.all.Load() {
		if err := e.checkEviction(ctx, n); err != nil {
			return err
		}
		if err := e.again(ctx, func() error { return n.client.ScriptLoad(ctx, turnLua).Err() }); err != nil {
			return err
		}
		if i > 0 {
			continue // the user is the same everywhere
		}
		key := e.cfg.Prefix + ":{probe}:" + e.server
		err := e.again(ctx, func() error {
			n, err := e.place.node(ctx, key)
			if err != nil {
				return err
			}
			return probeScript.Run(ctx, n.client, []string{key, key + "l", key + "z", key + "s"}, e.channel(), e.server+" ").Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
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
