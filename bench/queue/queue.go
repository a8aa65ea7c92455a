package queue

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/internal/embedded"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Family holds the figures of the queue: rates beside asynq and the raw
// ceilings, latencies, recovery, memory, exactness of the limiter.
func Family() harness.Family {
	return harness.Family{
		Name:  "queue",
		About: "queue cycles by streams beside asynq and raw ceilings, latency, timers, recovery, memory, limiter, backlog, history",
		Parts: []harness.Part{
			{Name: "cycles", Run: streamCycles},
			{Name: "storm", Run: addStorm},
			{Name: "latency", Run: addLatency},
			{Name: "timers", Run: timerError},
			{Name: "kill", Run: killRecovery},
			{Name: "memory", Run: keyMemory},
			{Name: "bucket", Run: bucketRate},
			{Name: "backlog", Run: bigBacklog},
			{Name: "inprocess", Run: inProcess},
			{Name: "history", Run: historyCost},
		},
	}
}

// A store is a Redis and a client that watches it.
type redisStore struct {
	*embedded.Redis
	admin *redis.Client
}

func startRedisStore(ctx context.Context, b *harness.Bench, name string, always bool) (*redisStore, error) {
	cfg := embedded.RedisConfig{Dir: filepath.Join(b.Dir, name)}
	if always {
		cfg.Persist, cfg.Args = true, []string{"--appendfsync", "always"}
	}
	r, err := embedded.StartRedisWith(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &redisStore{r, redis.NewClient(&redis.Options{Addr: r.Addr(), DB: load.AsynqDB})}, nil
}

func (s *redisStore) close() error {
	err := s.admin.Close()
	s.Stop()
	return err
}

// usedMemory is what Redis has allocated, without what connections hold.
func (s *redisStore) usedMemory(ctx context.Context) (float64, error) {
	used, err := system.InfoNumber(ctx, s.admin, "memory", "used_memory")
	if err != nil {
		return 0, err
	}
	aside, err := system.InfoNumber(ctx, s.admin, "memory", "mem_clients_normal", "mem_aof_buffer")
	return used - aside, err
}

// A rig is queue servers in children on one store, each with a pool.
type rig struct {
	store   *redisStore // nil: the memory engine
	servers []*harness.Child
	infos   []system.QueueServerInfo
	pools   []load.Pool
}

// newRig starts servers. An empty name of the store is the memory engine.
func newRig(ctx context.Context, b *harness.Bench, store string, always bool, replicas int) (*rig, error) {
	return newRigOf(ctx, b, store, always, replicas, system.QueueServerConfig{})
}

// newRigOf is newRig with settings of the servers, whose store is filled in.
func newRigOf(ctx context.Context, b *harness.Bench, store string, always bool, replicas int, cfg system.QueueServerConfig) (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if store != "" {
		if r.store, err = startRedisStore(ctx, b, store, always); err != nil {
			return r, err
		}
		cfg.RedisURL = r.store.URL()
	}
	for range replicas {
		var info system.QueueServerInfo
		server, err := b.Spawn(ctx, "queue", harness.Place{}, cfg, &info)
		if err != nil {
			return r, err
		}
		r.servers, r.infos = append(r.servers, server), append(r.infos, info)
		p, err := load.Dial(info.Queue, load.QueueConnections)
		if err != nil {
			return r, err
		}
		r.pools = append(r.pools, p)
	}
	return r, nil
}

// load makes a queue on the first server and returns what drives it.
func (r *rig) load(ctx context.Context, queue string, cfg *queuev1.QueueConfig) (*driver, error) {
	l := newDriver(r.pools[0], queue)
	return l, l.configure(ctx, cfg)
}

func (r *rig) close() error {
	var err error
	for _, p := range r.pools {
		err = errors.Join(err, p.Close())
	}
	for _, s := range r.servers {
		err = errors.Join(err, s.Stop())
	}
	if r.store != nil {
		err = errors.Join(err, r.store.close())
	}
	return err
}

// measureKeys runs a loop and returns its rate and what server, Redis and this
// process spent on each turn, in microseconds of CPU.
func measureKeys(ctx context.Context, b *harness.Bench, name string, server *harness.Child, store *redisStore, d time.Duration, loop func(context.Context, time.Duration) (load.Turns, error)) (got map[string]float64, err error) {
	run := func() error {
		before, err := harness.OwnUsage()
		if err != nil {
			return err
		}
		var spentBefore, spentAfter float64
		var t load.Turns
		if store != nil {
			if spentBefore, err = system.RedisCPU(ctx, store.admin); err != nil {
				return err
			}
		}
		var serverBefore, serverAfter harness.Usage
		if server != nil {
			if serverBefore, err = server.Usage(); err != nil {
				return err
			}
		}
		all := harness.FamilyBusy()
		if t, err = loop(ctx, d); err != nil {
			return err
		}
		all = harness.FamilyBusy() - all
		if server != nil {
			if serverAfter, err = server.Usage(); err != nil {
				return err
			}
		}
		if store != nil {
			if spentAfter, err = system.RedisCPU(ctx, store.admin); err != nil {
				return err
			}
		}
		after, err := harness.OwnUsage()
		if err != nil {
			return err
		}
		done := float64(t.Done)
		inRedis := (spentAfter - spentBefore) * 1e6 / done
		most := system.Capacity(t, all)
		if inRedis > 0 {
			most = min(most, 1e6/inRedis) // it has one thread
		}
		got = map[string]float64{
			"rate": t.Rate(), "capacity": most, "client": (after.CPU - before.CPU).Seconds() * 1e6 / done,
			"redis": inRedis, "server": (serverAfter.CPU - serverBefore.CPU).Seconds() * 1e6 / done,
		}
		return nil
	}
	if server == nil {
		return got, run()
	}
	err = b.Profiled(server, "queue-"+name, run)
	return got, err
}
