package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Config says how Redis is reached. URL must be set.
type Config struct {
	// URL is redis://[user:password@]host:port/db, or rediss:// with TLS.
	URL string
	// Prefix begins every key. Default "dp".
	Prefix string
	// AllowEviction permits a maxmemory-policy other than noeviction, under
	// which Redis may drop keys and with them exclusion.
	AllowEviction bool
	// GiveUp is how long a turn is tried. Default 5 s.
	GiveUp time.Duration
	// Skew, for tests, is added to Redis' clock.
	Skew func() time.Duration
	// Log receives what an operator would act on. Default: discarded.
	Log *slog.Logger
}

// Engine is an engine.Engine in Redis.
type Engine struct {
	cfg     Config
	client  *redis.Client
	server  string // this process, in wake-ups and stored answers
	turnSHA string

	warned sync.Once // about what Check lets pass

	run  atomic.Pointer[string]
	data atomic.Pointer[string]

	mu   sync.Mutex
	seen map[string]bool // queues this process has used
}

// errRun ends a call whose connection met a Redis with another run id: its
// arguments named the old one, and nothing was sent.
var errRun = errors.New("queue: redis was restarted or failed over")

var _ engine.Engine = (*Engine)(nil)

// New prepares an engine. It does not connect.
func New(cfg Config) (*Engine, error) {
	opt, err := redis.ParseURL(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("redis URL: %w", err)
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, "dp")
	cfg.GiveUp = cmp.Or(cfg.GiveUp, 5*time.Second)
	if cfg.Skew == nil {
		cfg.Skew = func() time.Duration { return 0 }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{cfg: cfg, server: strings.ToLower(rand.Text()[:12]), turnSHA: redis.NewScript(turnLua).Hash(), seen: map[string]bool{}}
	silence()
	opt.MaxRetries = -1 // a script must not run twice behind our back
	opt.ContextTimeoutEnabled = true
	opt.DialTimeout = 2 * time.Second
	opt.DialerRetries = 1
	opt.ReadTimeout = 3 * time.Second
	opt.WriteTimeout = 3 * time.Second
	opt.OnConnect = e.onConnect
	e.client = redis.NewClient(opt)
	return e, nil
}

// silence stops the client library's own lines on standard error: every error
// they tell of is returned to us.
var silence = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// onConnect learns the run id of the Redis behind every new connection.
func (e *Engine) onConnect(ctx context.Context, cn *redis.Conn) error {
	info, err := cn.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	run := ""
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "run_id:"); ok {
			run = strings.TrimSpace(v)
		}
	}
	if was := e.run.Swap(&run); was != nil && *was != run {
		return errRun
	}
	return nil
}

// runID is the run id of Redis as last met, empty before the first contact.
func (e *Engine) runID() string {
	if p := e.run.Load(); p != nil {
		return *p
	}
	return ""
}

// Kind is "redis".
func (e *Engine) Kind() string { return "redis" }

// Generation is the data id and Redis' run id, empty before the first contact.
func (e *Engine) Generation() string {
	data, run := e.data.Load(), e.run.Load()
	if data == nil || run == nil {
		return ""
	}
	return *data + "-" + *run
}

// Close closes the connections.
func (e *Engine) Close() error { return e.client.Close() }

// Check reaches Redis and refuses one that would break the queue's promises.
func (e *Engine) Check(ctx context.Context) error {
	err := e.again(ctx, func() error { return e.client.Ping(ctx).Err() })
	if err != nil {
		return err
	}
	policy, err := e.client.ConfigGet(ctx, "maxmemory-policy").Result()
	switch p := policy["maxmemory-policy"]; {
	case err != nil:
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
	if err := e.client.ScriptLoad(ctx, turnLua).Err(); err != nil {
		return classify(err)
	}
	return e.identify(ctx)
}

// identify learns the data id, making one where there is none.
func (e *Engine) identify(ctx context.Context) error {
	key := e.cfg.Prefix + ":data"
	if err := e.again(ctx, func() error { return e.client.SetNX(ctx, key, strings.ToLower(rand.Text()[:16]), 0).Err() }); err != nil {
		return err
	}
	id, err := e.client.Get(ctx, key).Result()
	if err != nil {
		return classify(err)
	}
	e.data.Store(&id)
	return nil
}

// again calls f once more when Redis turned out to be another run.
func (e *Engine) again(ctx context.Context, f func() error) error {
	err := f()
	for range 3 {
		if !errors.Is(err, errRun) || ctx.Err() != nil {
			break
		}
		err = f()
	}
	return classify(err)
}

// Configure implements engine.Engine.
func (e *Engine) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	cfg = cfg.WithDefaults()
	blob, err := json.Marshal(cfg)
	if err != nil {
		return nil, false, fmt.Errorf("queue %q: %w", name, err)
	}
	if err := e.identify(ctx); err != nil {
		return nil, false, err
	}
	hold := int64(0)
	if e.known(name) { // it existed: its leases may still be worked on
		hold = cfg.LeaseFor.Microseconds()
	}
	if err := e.client.SAdd(ctx, e.cfg.Prefix+":queues", name).Err(); err != nil {
		return nil, false, classify(err)
	}
	res, err := redis.NewScript(configureLua).Run(ctx, e.client, configureKeys(e.cfg.Prefix, name, 0),
		blob, strconv.FormatUint(uint64(time.Now().UnixNano()), 36)+e.server, cfg.Partitions, hold).Slice()
	if err != nil {
		return nil, false, classify(err)
	}
	q, err := e.Open(ctx, name)
	return q, len(res) > 0 && res[0] == int64(1), err
}

// Open implements engine.Engine.
func (e *Engine) Open(ctx context.Context, name string) (engine.Queue, error) {
	q := &queue{
		e: e, name: name, meta: metaKey(e.cfg.Prefix, name, 0),
		keys: keys(e.cfg.Prefix, name, 0, e.server), look: keys(e.cfg.Prefix, name, 0, e.server+"i"),
		seq: uint64(time.Now().UnixNano()),
	}
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

// Names implements engine.Engine.
func (e *Engine) Names(ctx context.Context) ([]string, error) {
	var names []string
	err := e.again(ctx, func() (err error) {
		names, err = e.client.SMembers(ctx, e.cfg.Prefix+":queues").Result()
		return err
	})
	slices.Sort(names)
	return names, err
}

// Wakes implements engine.Engine with one subscription.
func (e *Engine) Wakes(ctx context.Context, wake func(string)) error {
	sub := e.client.Subscribe(ctx, e.channel())
	defer sub.Close()
	msgs := sub.ChannelWithSubscriptions()
	for {
		select {
		case <-ctx.Done():
			return nil
		case m, ok := <-msgs:
			if !ok {
				return nil
			}
			switch m := m.(type) {
			case *redis.Subscription:
				wake("") // wake-ups may have been missed while it was down
			case *redis.Message:
				if from, name, _ := strings.Cut(m.Payload, " "); from != e.server {
					wake(name)
				}
			}
		}
	}
}

func (e *Engine) channel() string { return e.cfg.Prefix + ":wake" }
