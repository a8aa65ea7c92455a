package queue

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue/maintain"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Config says where the service listens and where queues are kept. The zero
// value listens on a free loopback port and keeps queues in memory.
type Config struct {
	// RPC is where the services listen.
	RPC rpc.ServerConfig
	// Admin is where metrics, readiness and profiles are served.
	Admin telemetry.AdminConfig
	// Access says who decides what callers may do. Default: every caller may do everything.
	Access authority.Config
	// Queues exist from the start, and are made again when the store lost them.
	Queues []QueueConfig

	// RedisURL selects the Redis engine, in one of the forms of
	// [redis.Config.URL]: one server, Sentinel or Cluster. Empty: memory.
	RedisURL string
	// RedisUsername and RedisPassword replace those of RedisURL.
	RedisUsername, RedisPassword string
	// RedisPasswordNow is asked for the password at each connection, in place of RedisPassword.
	RedisPasswordNow func() (string, error)
	// RedisSentinelUsername and RedisSentinelPassword are what sentinels ask for; the password is
	// asked for at each connection.
	RedisSentinelUsername string
	RedisSentinelPassword func() (string, error)
	// RedisTLS is asked for the configuration of each connection where RedisURL asks for TLS.
	// Default: the system's roots.
	RedisTLS func() *tls.Config
	// RedisPrefix begins every Redis key. Default "dp".
	RedisPrefix string
	// AllowEviction permits a Redis that evicts keys.
	AllowEviction bool
	// DataDir is where the memory engine logs queues; empty for nowhere.
	DataDir string
	// Fsync makes the memory engine force every transaction to disk.
	Fsync bool

	// CloseGrace is what is left of the leases of a stream that broke.
	// Default 1 s.
	CloseGrace time.Duration
	// FallbackEvery is how often a queue with waiting workers is looked at
	// without a reason, in case a wake-up was lost. Default 5 s.
	FallbackEvery time.Duration
	// StopGrace is how long Work streams may go on after Run's context ended,
	// to settle and to move elsewhere. Default 2 s.
	StopGrace time.Duration
	// MaxTransaction is about how many operations, and how many leases, one transaction
	// holds. Default 512.
	MaxTransaction int
	// MaxSessions bounds sessions remembered. At the limit those without a
	// stream, a waiting Get and a lease are forgotten, the one not heard of for
	// longest first; where there is none, new ones are refused with
	// RESOURCE_EXHAUSTED TOO_MANY_SESSIONS. Default 100,000.
	MaxSessions int
	// MaxQueues bounds the queues of the store: ConfigureQueue makes no further
	// one, with RESOURCE_EXHAUSTED TOO_MANY_QUEUES, and those that exist go on.
	// Those of Queues are made all the same. Default 10,000.
	MaxQueues int
	// ExpireAfter is how long a queue may be empty and unused before it is deleted
	// with its configuration, 1 min at least: no call but a look at it, no Work
	// stream, and no Produce stream that added to it, on any server of the store.
	// Those of Queues stay. Default 0: never.
	ExpireAfter time.Duration
	// MaxPending bounds the operations that wait for a transaction of one partition;
	// calls beyond are refused with RESOURCE_EXHAUSTED OVERLOADED, what ends or
	// extends leases excepted. Default 100,000.
	MaxPending int
	// HistoryKeys is how many keys the server remembers the last 8 events of,
	// for Inspect, at about 500 bytes each. Default 100,000; below zero none.
	HistoryKeys int
}

// QueueConfig is a queue by name.
type QueueConfig struct {
	Name string
	workqueue.Config
}

func (c Config) withDefaults() Config {
	c.RPC = c.Access.Applied(c.RPC)
	c.CloseGrace = cmp.Or(c.CloseGrace, time.Second)
	c.FallbackEvery = cmp.Or(c.FallbackEvery, 5*time.Second)
	c.StopGrace = cmp.Or(c.StopGrace, 2*time.Second)
	c.MaxTransaction = cmp.Or(c.MaxTransaction, 512)
	c.MaxSessions = cmp.Or(c.MaxSessions, 100_000)
	c.MaxQueues = cmp.Or(c.MaxQueues, 10_000)
	c.MaxPending = cmp.Or(c.MaxPending, 100_000)
	c.HistoryKeys = cmp.Or(c.HistoryKeys, 100_000)
	return c
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.RPC.Validate(), c.Access.Validate(c.RPC.Auth), c.Admin.Validate()}
	seen := map[string]bool{}
	for _, q := range c.Queues {
		if err := wire.CheckName(q.Name); err != nil {
			errs = append(errs, fmt.Errorf("queue: queues: %w", err))
		}
		if seen[q.Name] {
			errs = append(errs, fmt.Errorf("queue: queues: %q is named twice", q.Name))
		}
		seen[q.Name] = true
		if err := q.Config.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("queue: queue %q: %w", q.Name, err))
		}
	}
	for name, d := range map[string]time.Duration{"close grace": c.CloseGrace, "fallback interval": c.FallbackEvery, "stop grace": c.StopGrace} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("queue: %s %v is negative", name, d))
		}
	}
	if c.MaxTransaction < 1 || c.MaxTransaction > 3000 {
		errs = append(errs, fmt.Errorf("queue: max transaction %d is not between 1 and 3000", c.MaxTransaction))
	}
	if c.MaxSessions < 1 {
		errs = append(errs, fmt.Errorf("queue: max sessions %d is below 1", c.MaxSessions))
	}
	if c.MaxQueues < 1 {
		errs = append(errs, fmt.Errorf("queue: max queues %d is below 1", c.MaxQueues))
	}
	if c.ExpireAfter != 0 && c.ExpireAfter < maintain.MinExpiry {
		errs = append(errs, fmt.Errorf("queue: expire after %v is not 0 (never) or at least %v", c.ExpireAfter, maintain.MinExpiry))
	}
	if c.MaxPending < wire.MaxItems {
		errs = append(errs, fmt.Errorf("queue: max pending %d is below %d, one call's worth", c.MaxPending, wire.MaxItems))
	}
	if c.HistoryKeys > 10_000_000 {
		errs = append(errs, fmt.Errorf("queue: history keys %d is above 10,000,000", c.HistoryKeys))
	}
	if c.RedisURL != "" && c.DataDir != "" {
		errs = append(errs, errors.New("queue: a Redis URL and a data directory exclude one another"))
	}
	return errors.Join(errs...)
}
