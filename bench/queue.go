package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/internal/embedded"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// queueFamily holds the figures of the queue: rates beside asynq and the raw
// ceilings, latencies, recovery, memory, exactness of the limiter.
func queueFamily() family {
	return family{
		name:  "queue",
		about: "queue cycles by streams beside asynq and raw ceilings, latency, timers, recovery, memory, limiter, backlog",
		parts: []part{
			{"cycles", streamCycles},
			{"storm", addStorm},
			{"latency", addLatency},
			{"timers", timerError},
			{"kill", killRecovery},
			{"memory", keyMemory},
			{"bucket", bucketRate},
			{"backlog", bigBacklog},
			{"inprocess", inProcess},
		},
	}
}

// A store is a Redis and a client that watches it.
type redisStore struct {
	*embedded.Redis
	admin *redis.Client
}

func startRedisStore(ctx context.Context, b *bench, name string, always bool) (*redisStore, error) {
	cfg := embedded.RedisConfig{Dir: filepath.Join(b.dir, name)}
	if always {
		cfg.Persist, cfg.Args = true, []string{"--appendfsync", "always"}
	}
	r, err := embedded.StartRedisWith(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &redisStore{r, redis.NewClient(&redis.Options{Addr: r.Addr(), DB: asynqDB})}, nil
}

func (s *redisStore) close() error {
	err := s.admin.Close()
	s.Stop()
	return err
}

// usedMemory is what Redis has allocated, without what connections hold.
func (s *redisStore) usedMemory(ctx context.Context) (float64, error) {
	used, err := infoNumber(ctx, s.admin, "memory", "used_memory")
	if err != nil {
		return 0, err
	}
	aside, err := infoNumber(ctx, s.admin, "memory", "mem_clients_normal", "mem_aof_buffer")
	return used - aside, err
}

// A rig is queue servers in children on one store, each with a pool.
type rig struct {
	store   *redisStore // nil: the memory engine
	servers []*child
	infos   []queueServerInfo
	pools   []pool
}

// newRig starts servers. An empty name of the store is the memory engine.
func newRig(ctx context.Context, b *bench, store string, always bool, replicas int) (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	var cfg queueServerConfig
	if store != "" {
		if r.store, err = startRedisStore(ctx, b, store, always); err != nil {
			return r, err
		}
		cfg.RedisURL = r.store.URL()
	}
	for range replicas {
		var info queueServerInfo
		server, err := b.spawn(ctx, "queue", place{}, cfg, &info)
		if err != nil {
			return r, err
		}
		r.servers, r.infos = append(r.servers, server), append(r.infos, info)
		p, err := dial(info.Queue, queueConnections)
		if err != nil {
			return r, err
		}
		r.pools = append(r.pools, p)
	}
	return r, nil
}

// load makes a queue on the first server and returns what drives it.
func (r *rig) load(ctx context.Context, queue string, cfg *queuev1.QueueConfig) (*load, error) {
	l := newLoad(r.pools[0], queue)
	return l, l.configure(ctx, cfg)
}

func (r *rig) close() error {
	var err error
	for _, p := range r.pools {
		err = errors.Join(err, p.Close())
	}
	for _, s := range r.servers {
		err = errors.Join(err, s.stop())
	}
	if r.store != nil {
		err = errors.Join(err, r.store.close())
	}
	return err
}

// measureKeys runs a loop and returns its rate and what server, Redis and this
// process spent on each turn, in microseconds of CPU.
func measureKeys(ctx context.Context, b *bench, name string, server *child, store *redisStore, d time.Duration, loop func(context.Context, time.Duration) (turns, error)) (got map[string]float64, err error) {
	run := func() error {
		before, err := ownUsage()
		if err != nil {
			return err
		}
		var spentBefore, spentAfter float64
		var t turns
		if store != nil {
			if spentBefore, err = redisCPU(ctx, store.admin); err != nil {
				return err
			}
		}
		var serverBefore, serverAfter usage
		if server != nil {
			if serverBefore, err = server.usage(); err != nil {
				return err
			}
		}
		all := familyBusy()
		if t, err = loop(ctx, d); err != nil {
			return err
		}
		all = familyBusy() - all
		if server != nil {
			if serverAfter, err = server.usage(); err != nil {
				return err
			}
		}
		if store != nil {
			if spentAfter, err = redisCPU(ctx, store.admin); err != nil {
				return err
			}
		}
		after, err := ownUsage()
		if err != nil {
			return err
		}
		done := float64(t.done)
		inRedis := (spentAfter - spentBefore) * 1e6 / done
		most := capacity(t, all)
		if inRedis > 0 {
			most = min(most, 1e6/inRedis) // it has one thread
		}
		got = map[string]float64{
			"rate": t.rate(), "capacity": most, "client": (after.CPU - before.CPU).Seconds() * 1e6 / done,
			"redis": inRedis, "server": (serverAfter.CPU - serverBefore.CPU).Seconds() * 1e6 / done,
		}
		return nil
	}
	if server == nil {
		return got, run()
	}
	err = b.profiled(server, "queue-"+name, run)
	return got, err
}
