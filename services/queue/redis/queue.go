package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// queue is one queue in Redis: partitions, each with a configuration of its
// own slot. That of the first is the queue's; the others follow it.
type queue struct {
	e     *Engine
	name  string
	parts []*partition

	loading sync.Mutex // one at a time
}

// stored is what a partition's slot holds of the configuration.
type stored struct {
	blob, version string
	born          string // the version with which its data began
	gone          string // names the data that was deleted; empty when it was not
	idle          bool   // it is gone because nobody used it
	seal          string // by what it refuses transactions, because it is about to expire; empty when it does not
}

var configureScript = redis.NewScript(configureLua)

// Config implements engine.Queue.
func (q *queue) Config() workqueue.Config { return q.parts[0].conf.Load().cfg }

// Partitions implements engine.Queue.
func (q *queue) Partitions() []engine.Partition {
	out := make([]engine.Partition, len(q.parts))
	for i, p := range q.parts {
		out[i] = p
	}
	return out
}

// Configure implements engine.Engine. The first partition is made last and
// changed first: a queue exists once it is whole, and whatever the first one
// says is in force for all, even when who was saying so ended on the way
// ([queue.load] heals the rest).
func (e *Engine) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	cfg = cfg.WithDefaults()
	blob, err := json.Marshal(cfg)
	if err != nil {
		return nil, false, fmt.Errorf("queue %q: %w", name, err)
	}
	if err := e.identify(ctx); err != nil {
		return nil, false, err
	}
	if err := e.durable(ctx, name, &cfg); err != nil {
		return nil, false, err
	}
	existed := e.known(name) // then its leases may still be worked on
	if err := e.list(ctx, name); err != nil {
		return nil, false, err
	}
	first, err := e.stored(ctx, name, 1)
	if err != nil {
		return nil, false, err
	}
	if first[0].idle { // it left nothing, and no lease
		e.forget(name)
		existed = false
	} else if first[0].gone != "" {
		if _, err := e.deleteRest(ctx, name, first[0].gone); err != nil {
			return nil, false, err
		}
		if err := e.list(ctx, name); err != nil {
			return nil, false, err
		}
	}
	order := make([]int, cfg.Partitions)
	for i := range order {
		if order[i] = i; first[0].version == "" {
			order[i] = cfg.Partitions - 1 - i
		}
	}
	version := strconv.FormatUint(uint64(time.Now().UnixNano()), 36) + e.server
	made := 0
	for _, part := range order {
		hold := time.Duration(0)
		if existed {
			hold = e.granted(name, part).pause(e.clock(), &cfg)
		}
		created, err := e.configure(ctx, name, part, &cfg, string(blob), version, hold)
		if err != nil {
			return nil, false, err
		}
		if created {
			made++
		}
	}
	if made > 0 && made < cfg.Partitions && existed { // some of its data was lost
		if err := e.lost(ctx); err != nil {
			return nil, false, err
		}
	}
	if made > 0 { // it may have been taken out again by who ended the one before
		if err := e.list(ctx, name); err != nil {
			return nil, false, err
		}
	}
	q, err := e.Open(ctx, name)
	return q, first[0].version == "", err
}

// list puts a name among those of queues, unless it is there: a full Redis takes
// no more.
func (e *Engine) list(ctx context.Context, name string) error {
	names, err := e.Names(ctx)
	if _, found := slices.BinarySearch(names, name); found || err != nil {
		return err
	}
	return e.again(ctx, func() error { return e.client.SAdd(ctx, e.cfg.Prefix+":queues", name).Err() })
}

// configure writes the configuration of one partition, blob in its stored form.
func (e *Engine) configure(ctx context.Context, name string, part int, cfg *workqueue.Config, blob, version string, hold time.Duration) (created bool, err error) {
	var rate workqueue.Rate
	if cfg.Dispatch != nil {
		rate = *cfg.Dispatch
	}
	names, later := configureKeys(e.cfg.Prefix, name, part), min(part, 1)
	err = e.again(ctx, func() error {
		n, err := e.place.node(ctx, names[0])
		if err != nil {
			return err
		}
		sent := e.clock()
		res, err := configureScript.Run(ctx, n.client, names, blob, version, cfg.Partitions, hold.Microseconds(),
			e.skew().Microseconds(), rate.QPS, rate.Burst, later).Slice()
		// After a lost reply it is done again, and then it is not who created it.
		if len(res) == 2 {
			created = true
			if now, ok := res[1].(int64); ok && hold == 0 {
				e.granted(name, part).clock.made(sent, e.clock(), now)
			}
		}
		return err
	})
	if errors.Is(err, engine.ErrPartitions) {
		return false, fmt.Errorf("queue %q, %d partitions asked for: %w", name, cfg.Partitions, err)
	}
	return created, err
}

// Open implements engine.Engine.
func (e *Engine) Open(ctx context.Context, name string) (engine.Queue, error) {
	q := &queue{e: e, name: name}
	if err := q.load(ctx); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.seen[name] = true
	e.mu.Unlock()
	return q, nil
}

func (e *Engine) known(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen[name]
}

// stored reads what the first n partitions hold of the configuration.
func (e *Engine) stored(ctx context.Context, name string, n int) ([]stored, error) {
	return e.storedFrom(ctx, name, 0, n)
}

func (e *Engine) storedFrom(ctx context.Context, name string, from, n int) ([]stored, error) {
	out := make([]stored, n)
	err := e.again(ctx, func() error {
		var got []*redis.SliceCmd
		_, err := e.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for part := range n {
				got = append(got, p.HMGet(ctx, metaKey(e.cfg.Prefix, name, from+part), "cfg", "ver", "born", "gone", "idle", "seal"))
			}
			return nil
		})
		if err != nil {
			return err
		}
		for part, cmd := range got {
			v := cmd.Val()
			out[part].blob, _ = v[0].(string)
			out[part].version, _ = v[1].(string)
			out[part].born, _ = v[2].(string)
			out[part].gone, _ = v[3].(string)
			out[part].idle = v[4] != nil
			out[part].seal, _ = v[5].(string)
		}
		return nil
	})
	return out, err
}

// first reads the configuration in force: the first partition's, or, while that is
// away, any copy of it.
func (e *Engine) first(ctx context.Context, name string) (stored, error) {
	first, err := e.stored(ctx, name, 1)
	if err == nil && first[0].idle {
		e.forget(name) // no lease was left
	}
	if err == nil && first[0].gone != "" {
		return stored{}, fmt.Errorf("%w: %q", engine.ErrDeleted, name)
	}
	if err == nil && first[0].version == "" {
		return stored{}, fmt.Errorf("%w: %q", engine.ErrNoQueue, name)
	}
	if err == nil {
		return first[0], nil
	}
	if away(err) && e.target.of == cluster {
		all, _ := e.storedApart(ctx, name, workqueue.MaxPartitions)
		for _, s := range all {
			if s.version != "" {
				return s, nil
			}
		}
	}
	return stored{}, err
}

// storedApart is what partitions hold of the configuration, and why that of some
// cannot be read.
func (e *Engine) storedApart(ctx context.Context, name string, n int) ([]stored, []error) {
	all, err := e.stored(ctx, name, n)
	missing := make([]error, n)
	if err == nil {
		return all, missing
	}
	all = make([]stored, n)
	var wg sync.WaitGroup
	for part := range n {
		wg.Go(func() {
			var one []stored
			if one, missing[part] = e.storedFrom(ctx, name, part, 1); missing[part] == nil {
				all[part] = one[0]
			}
		})
	}
	wg.Wait()
	return all, missing
}

// reload is load for transactions, which may find a change at once.
func (q *queue) reload(ctx context.Context) error {
	q.loading.Lock()
	defer q.loading.Unlock()
	return q.load(ctx)
}

// load reads the configuration in force, gives it to partitions that have
// another, and reads the data id beside it.
func (q *queue) load(ctx context.Context) error {
	e := q.e
	first, err := e.first(ctx, q.name)
	if err != nil {
		return err
	}
	var cfg workqueue.Config
	if err := json.Unmarshal([]byte(first.blob), &cfg); err != nil {
		return fmt.Errorf("configuration of queue %q: %w", q.name, err)
	}
	cfg = cfg.WithDefaults()
	if n := len(q.parts); n > 0 && n != cfg.Partitions {
		return fmt.Errorf("%w: %q, and made again with %d partitions", engine.ErrDeleted, q.name, cfg.Partitions)
	}
	all, missing := e.storedApart(ctx, q.name, cfg.Partitions)
	lost, healed := false, false
	for part := 1; part < len(all); part++ {
		if all[part].blob == first.blob || missing[0] != nil || missing[part] != nil {
			continue
		}
		hold := e.granted(q.name, part).pause(e.clock(), &cfg)
		created, err := e.configure(ctx, q.name, part, &cfg, first.blob, first.version, hold)
		if err != nil {
			return err
		}
		lost, healed = lost || created && !all[part].idle, true
	}
	if healed {
		all, missing = e.storedApart(ctx, q.name, cfg.Partitions)
	}
	if err := q.wanted(ctx, all, missing); err != nil {
		return err
	}
	for len(q.parts) < cfg.Partitions { // never after the first time
		q.parts = append(q.parts, newPartition(q, len(q.parts)))
	}
	for part, p := range q.parts[:min(len(q.parts), len(all))] {
		if missing[part] != nil && p.conf.Load() != nil {
			continue // a transaction reads it again once it is reached
		}
		c := &conf{cfg: cfg, version: all[part].version, born: all[part].born}
		c.often, c.rare = constants(&cfg, e.cfg.AllowEviction, e.channel(), e.server+" "+q.name)
		if was := p.conf.Load(); was != nil && was.version != "" && was.born != c.born {
			p.tells.Store(true)
		}
		p.conf.Store(c)
	}
	if lost {
		return e.lost(ctx)
	}
	return e.identify(ctx)
}
