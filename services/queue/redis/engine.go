package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Config says how Redis is reached. URL must be set.
type Config struct {
	// URL says where Redis is, and how it is found:
	//
	//	redis://[user:password@]host:port[/db]
	//	redis+sentinel://[user:password@]host1[:port],host2,host3/mastername[/db]
	//	redis+cluster://[user:password@]host1[:port],host2,host3
	//
	// and each with TLS: rediss, rediss+sentinel, rediss+cluster. User and
	// password are Redis'. unix://path is a local socket.
	URL string
	// Username and Password replace those of URL.
	Username, Password string
	// PasswordNow is asked for the password at each connection, in place of Password; an error is
	// that of the connection.
	PasswordNow func() (string, error)
	// SentinelUsername and SentinelPassword are what the sentinels ask for,
	// which is not what Redis asks for. The password is asked for at each
	// connection to one; an error is that of the connection.
	SentinelUsername string
	SentinelPassword func() (string, error)
	// TLS is asked for the configuration of each connection by the schemes
	// with TLS. Default: the system's roots, TLS 1.2.
	TLS func() *tls.Config
	// Prefix begins every key. Default "dp".
	Prefix string
	// AllowEviction permits a maxmemory-policy other than noeviction, under
	// which Redis may drop keys and with them exclusion.
	AllowEviction bool
	// GiveUp is how long a transaction is tried, through restarts and failovers, and
	// how long its durability is waited for. Default 5 s.
	GiveUp time.Duration
	// Skew, for tests, is added to Redis' clock and to this process' own: time
	// that has passed.
	Skew func() time.Duration
	// Step, for tests, is added to Redis' clock alone.
	Step func() time.Duration
	// Log receives what an operator would act on. Default: discarded.
	Log *slog.Logger
}

// Engine is an engine.Engine in Redis.
type Engine struct {
	cfg            Config
	target         target
	client         redis.UniversalClient // for what may be sent twice
	place          place
	server         string // this process, in wake-ups and stored answers
	transactionSHA string

	warned sync.Once // about what Check lets pass

	data       atomic.Pointer[string]
	all        atomic.Pointer[[]*node] // the masters as last met
	partial    atomic.Pointer[error]   // why some of them were not; nil inside when all were
	generation atomic.Pointer[string]

	transactions atomic.Uint64 // number of the last transaction, above those of any process before

	began time.Time
	steps atomic.Int64

	mu     sync.Mutex
	seen   map[string]bool      // queues this process has used
	grants map[string][]*grants // of each by partition
}

var _ engine.Engine = (*Engine)(nil)

// New prepares an engine. It does not connect.
func New(cfg Config) (*Engine, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, "dp")
	cfg.GiveUp = cmp.Or(cfg.GiveUp, 5*time.Second)
	if cfg.Skew == nil {
		cfg.Skew = func() time.Duration { return 0 }
	}
	if cfg.Step == nil {
		cfg.Step = func() time.Duration { return 0 }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if strings.ContainsAny(cfg.Prefix, "{} \t\r\n*?[]") {
		return nil, fmt.Errorf("redis prefix %q: it must have no braces, brackets, wildcards or spaces", cfg.Prefix)
	}
	t, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, target: t, server: strings.ToLower(rand.Text()[:12]), transactionSHA: redis.NewScript(transactionLua).Hash(), seen: map[string]bool{}, grants: map[string][]*grants{}, began: time.Now()}
	e.transactions.Store(uint64(time.Now().UnixNano()))
	silence()
	e.connect()
	return e, nil
}

// silence stops the client library's own lines on standard error: every error
// they tell of is returned to us.
var silence = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// noNotices keeps the client from asking for what only one vendor has.
var noNotices = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// skew is what tests add to Redis' clock.
func (e *Engine) skew() time.Duration { return e.cfg.Skew() + e.cfg.Step() }

// clock is this process' own clock, which does not step.
func (e *Engine) clock() time.Duration { return time.Since(e.began) + e.cfg.Skew() }

// Kind is "redis".
func (e *Engine) Kind() string { return "redis" }

// Generation is the data id and the run id of Redis, or a digest of those of
// all masters of a cluster. It is empty before the first contact.
func (e *Engine) Generation() string {
	if g := e.generation.Load(); g != nil {
		return *g
	}
	return ""
}

// regenerate puts the generation together from what is known.
func (e *Engine) regenerate() {
	data, all := e.data.Load(), e.all.Load()
	if data == nil || all == nil || len(*all) == 0 {
		return
	}
	runs := make([]string, 0, len(*all))
	for _, n := range *all {
		if n.run() == "" {
			return
		}
		runs = append(runs, n.run())
	}
	slices.Sort(runs)
	run := runs[0]
	if len(runs) > 1 {
		sum := sha256.Sum256([]byte(strings.Join(runs, " ")))
		run = hex.EncodeToString(sum[:20])
	}
	e.generation.Store(new(*data + "-" + run))
}

// Close closes the connections.
func (e *Engine) Close() error { return e.client.Close() }

// identify meets every master and learns the data id, making one where there
// is none. Masters that are away are left out where others are met.
func (e *Engine) identify(ctx context.Context) error {
	all, partial, err := e.place.masters(ctx)
	if err != nil {
		return classify(err)
	}
	e.all.Store(&all)
	e.partial.Store(&partial)
	key := e.cfg.Prefix + ":data"
	var id string
	err = e.again(ctx, func() (err error) {
		if id, err = e.client.Get(ctx, key).Result(); !errors.Is(err, redis.Nil) {
			return err // it is only written once: a full Redis takes no more
		}
		if err := e.client.SetNX(ctx, key, newDataID(), 0).Err(); err != nil {
			return err
		}
		id, err = e.client.Get(ctx, key).Result()
		return err
	})
	if partial != nil && away(err) {
		return nil // its node is away: the id is what it was, or told later
	}
	if err != nil {
		return err
	}
	e.data.Store(&id)
	e.regenerate()
	return nil
}

// away says that an error is of a node that was not reached.
func away(err error) bool {
	return errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrUnknown)
}

func newDataID() string { return strings.ToLower(rand.Text()[:16]) }

// lost gives the data a new id, because part of it is gone.
func (e *Engine) lost(ctx context.Context) error {
	err := e.again(ctx, func() error { return e.client.Set(ctx, e.cfg.Prefix+":data", newDataID(), 0).Err() })
	if err != nil {
		return err
	}
	return e.identify(ctx)
}

// again does what may be done twice, until it is done, refused, or has failed a
// few times.
func (e *Engine) again(ctx context.Context, f func() error) error {
	wait := attempt.Wait{First: 2 * time.Millisecond, Most: 32 * time.Millisecond}
	for tries := 0; ; tries++ {
		err := f()
		if err == nil || tries == 5 || ctx.Err() != nil {
			return classify(err)
		}
		switch _, how := judge(err); {
		case errors.Is(err, errRun) && tries < 5:
			continue
		case errors.Is(how, engine.ErrUnknown): // its connection ended
		case errors.Is(how, errMoved):
			e.place.moved(ctx)
		default:
			return classify(err)
		}
		if !wait.Sleep(ctx, 0) {
			return classify(err)
		}
	}
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

// Wakes implements engine.Engine with one subscription. In a cluster every node
// hears what is published on any of them.
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
