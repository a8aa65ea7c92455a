package redis

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// restart is a hook that changes the run id once a command has been answered.
type restart struct{ n *node }

func (restart) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r restart) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if r.n.run() != "another" {
			r.n.facts.Store(&facts{run: "another"})
		}
		return err
	}
}

func (restart) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TransactionDuringRestart does a transaction while the run id changes.
func TransactionDuringRestart(ctx context.Context, t *testing.T, e *Engine, q engine.Queue, in workqueue.Transaction) *workqueue.Result {
	t.Helper()
	n := e.place.(one).n
	n.client.AddHook(restart{n})
	r, err := q.Partitions()[0].Apply(ctx, &in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ConfigureFirst writes a configuration to the first partition and ends there.
func ConfigureFirst(ctx context.Context, e *Engine, name string, cfg workqueue.Config) error {
	cfg = cfg.WithDefaults()
	blob, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	_, err = e.configure(ctx, name, 0, &cfg, string(blob), "half", 0)
	return err
}

// Stored is the configuration that a partition's slot holds.
func Stored(ctx context.Context, e *Engine, name string, part int) (cfg workqueue.Config) {
	all, err := e.stored(ctx, name, part+1)
	if err == nil {
		err = json.Unmarshal([]byte(all[part].blob), &cfg)
	}
	if err != nil {
		panic(err)
	}
	return cfg
}
