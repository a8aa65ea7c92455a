package redis_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func start(t *testing.T, args ...string) *embedded.Redis {
	t.Helper()
	return embeddedtest.Redis(t, args...)
}

func open(t *testing.T, url string) (*redis.Engine, enginetest.Fixture) {
	t.Helper()
	var skew, step atomic.Int64
	e, err := redis.New(redis.Config{
		URL: url, GiveUp: time.Minute, Skew: func() time.Duration { return time.Duration(skew.Load()) }, Step: func() time.Duration { return time.Duration(step.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := e.Check(ctx); err != nil {
		t.Fatal(err)
	}
	return e, enginetest.Fixture{Engine: e, Advance: func(d time.Duration) { skew.Add(int64(d)) }, Step: func(d time.Duration) { step.Add(int64(d)) }}
}

func TestEngine(t *testing.T) {
	t.Parallel()
	enginetest.Run(t, func(t *testing.T) enginetest.Fixture {
		srv := start(t)
		_, fx := open(t, srv.URL())
		fx.Orphan = func(t *testing.T, queue, key string) {
			t.Helper()
			if n, err := raw(t, srv).ZRem(t.Context(), "dp:{"+queue+"/0}:lease", key).Result(); n != 1 || err != nil {
				t.Fatalf("ZREM of %q = %d, %v", key, n, err)
			}
		}
		return fx
	})
}

func TestRandomHistoriesMatchTheOracle(t *testing.T) {
	t.Parallel()
	_, fx := open(t, start(t).URL())
	enginetest.Model(t, fx, uint64(time.Now().UnixNano()), enginetest.Ops(t))
}
