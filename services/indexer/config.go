package indexer

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/read"
	"github.com/deltaplane/deltaplane/services/indexer/watch"
	"github.com/deltaplane/deltaplane/services/indexer/wire"
)

// Tier says how payloads are kept.
type Tier = follow.Tier

// The tiers; see package follow.
const (
	TierAuto    = follow.TierAuto
	TierRaw     = follow.TierRaw
	TierCompact = follow.TierCompact
)

// Buckets are those of NATS that an indexer writes.
var Buckets = define.Buckets

// Config says what an indexer follows and how it answers. The zero value
// follows every collection that has a log and listens on a free loopback port.
type Config struct {
	// RPC is where the IndexService listens.
	RPC rpc.ServerConfig
	// Admin is where metrics, readiness and profiles are served.
	Admin telemetry.AdminConfig
	// Access says who decides what callers may do. Default: every caller may do everything.
	Access authority.Config
	// Encryption of checkpoints, and the resources whose content takes the right to get it. With keys
	// every checkpoint is encrypted, and one that is not is not read.
	Encryption seal.Policy
	// Collections to follow, by whole name ("dev/pods.v1"). Empty: every one
	// that has a log. Those named are known, and not synced, before their log is.
	Collections []string
	// DiscoverEvery is how often new logs are looked for; default 1 s. While none
	// is known, and after one was found, it begins at 100 ms and doubles.
	DiscoverEvery time.Duration
	// ForgetAfter is how long a collection is served, as stale, whose log was
	// deleted and not recreated; default 1 min. Then it is not found any more, until
	// it has a log. Those named in Collections are not forgotten.
	ForgetAfter time.Duration
	// Fields are the paths, per plural resource name, that are read at ingest for
	// field selectors. Default: status.phase of pods. spec.nodeName of pods and
	// spec.manualSelector of jobs are read in any case.
	Fields map[string][]string
	// Replica names this process in page tokens and answers; default random.
	Replica string

	// DataDir is a folder for checkpoints: each collection is written there from
	// time to time and at a stop, so that the next start reads from the log only
	// what came since. It belongs to one process. Empty: none are kept.
	DataDir string
	// CheckpointEvery is the least time between two checkpoints of a collection;
	// one that has hardly changed is left for longer. Default 5 min.
	CheckpointEvery time.Duration
	// CheckpointRate bounds how fast a checkpoint is written, in bytes per second,
	// except at a stop; default 64 MiB.
	CheckpointRate int

	// DefaultWait and MaxWait bound how long a read waits for a revision;
	// defaults 3 s and 30 s.
	DefaultWait, MaxWait time.Duration
	// SnapshotTTL is how long a page token's snapshot is kept after its last
	// use, MaxSnapshots how many at most; defaults 1 min and 64.
	SnapshotTTL  time.Duration
	MaxSnapshots int
	// SnapshotMaxAge is how long such a snapshot is kept in all, however often it is used, once it is
	// not the newest; default 15 min. SnapshotBytes is about how many bytes of payloads that have been
	// replaced they may hold; beyond it the oldest go. Default 256 MiB.
	SnapshotMaxAge time.Duration
	SnapshotBytes  int
	// MaxPageBytes cuts pages short; at least one object is always returned.
	// Default 3.5 MiB, below the 4 MiB that stock clients accept.
	MaxPageBytes int
	// MaxResponseBytes is what an answer without pages may hold; default 32 MiB.
	MaxResponseBytes int
	// MaxQueryCalls bounds the calls under way on one Query stream; beyond it the
	// stream is not read. Default 1000.
	MaxQueryCalls int
	// MaxIndexes bounds the declared indexes of a collection; default 64.
	MaxIndexes int
	// MaxWatchers bounds open watches; default 10,000. MaxClientWatchers bounds those
	// of one client, in the way that rpc.ServerConfig tells clients apart; default a
	// quarter of MaxWatchers, at least 100.
	MaxWatchers, MaxClientWatchers int
	// MaxRequestBytes is about what requests may hold while they wait, beside
	// MemoryBudget: what watches select and their readers know, calls on Query streams,
	// answers that their readers have not taken. One client may hold half of it; more
	// is refused with RESOURCE_EXHAUSTED REQUEST_MEMORY. Default an eighth of
	// MemoryBudget, at most 256 MiB and at least two answers of MaxResponseBytes;
	// 256 MiB without a budget.
	MaxRequestBytes int
	// MaxInitialStates bounds the initial states of more than 1,000 objects that
	// are sent at a time; other watches wait in line. Default 16.
	MaxInitialStates int
	// RingChanges and RingBytes bound the changes kept per collection for watchers
	// that lag; defaults 8192, and 64 MiB but at most an eighth of MemoryBudget. The
	// payloads, those of deletions too, count for MemoryBudget; what is written for
	// such watchers takes up to RingBytes per collection beside it.
	RingChanges, RingBytes int
	// Tier says how payloads are kept; default TierAuto.
	Tier Tier
	// MemoryBudget is about how many bytes all collections may take; zero sets no
	// bound. Towards it TierAuto turns compact. A collection that would pass it
	// is let go: reads of it fail with RESOURCE_EXHAUSTED MEMORY_BUDGET until
	// there is room, and the others are served. It is no bound of the process:
	// see MemoryNeed, beside which there is garbage.
	MemoryBudget int
	// StaleAfter is the silence after which a collection is called stale;
	// default 15 s, several liveness periods.
	StaleAfter time.Duration
}

func (c Config) withDefaults() Config {
	c.RPC = c.Access.Applied(c.RPC)
	c.DiscoverEvery = cmp.Or(c.DiscoverEvery, time.Second)
	c.ForgetAfter = cmp.Or(c.ForgetAfter, time.Minute)
	if c.Fields == nil {
		c.Fields = map[string][]string{"pods": {define.NodeField, "status.phase"}}
	}
	c.CheckpointEvery = cmp.Or(c.CheckpointEvery, 5*time.Minute)
	c.CheckpointRate = cmp.Or(c.CheckpointRate, 64<<20)
	c.DefaultWait = cmp.Or(c.DefaultWait, 3*time.Second)
	c.MaxWait = cmp.Or(c.MaxWait, 30*time.Second)
	c.SnapshotTTL = cmp.Or(c.SnapshotTTL, time.Minute)
	c.MaxSnapshots = cmp.Or(c.MaxSnapshots, 64)
	c.SnapshotMaxAge = cmp.Or(c.SnapshotMaxAge, 15*time.Minute)
	c.SnapshotBytes = cmp.Or(c.SnapshotBytes, 256<<20)
	c.MaxPageBytes = cmp.Or(c.MaxPageBytes, 7<<19)
	c.MaxResponseBytes = cmp.Or(c.MaxResponseBytes, 32<<20)
	c.MaxQueryCalls = cmp.Or(c.MaxQueryCalls, 1000)
	c.MaxIndexes = cmp.Or(c.MaxIndexes, 64)
	c.MaxWatchers = cmp.Or(c.MaxWatchers, 10_000)
	c.MaxClientWatchers = cmp.Or(c.MaxClientWatchers, min(c.MaxWatchers, max(c.MaxWatchers/4, 100)))
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = 256 << 20
		if c.MemoryBudget > 0 {
			c.MaxRequestBytes = min(c.MaxRequestBytes, c.MemoryBudget/8)
		}
		c.MaxRequestBytes = max(c.MaxRequestBytes, 2*c.MaxResponseBytes)
	}
	c.MaxInitialStates = cmp.Or(c.MaxInitialStates, 16)
	c.RingChanges = cmp.Or(c.RingChanges, 8192)
	if c.RingBytes == 0 {
		c.RingBytes = 64 << 20
		if c.MemoryBudget > 0 {
			c.RingBytes = max(min(c.RingBytes, c.MemoryBudget/8), 1)
		}
	}
	c.Tier = cmp.Or(c.Tier, TierAuto)
	c.StaleAfter = cmp.Or(c.StaleAfter, 15*time.Second)
	return c
}

// baseMemory is about what a process takes beside what its configuration
// bounds: code, connections, what is under way at ingest.
const baseMemory = 64 << 20

// MemoryNeed is about how much an indexer of this configuration has at most that
// is not garbage: the memory budget, in which the rings of changes count, and what
// requests and the snapshots of pages hold. [Service.WatchMemory] comes beside it.
// It is zero without a budget, which is no bound.
func (c Config) MemoryNeed() int {
	if c.MemoryBudget == 0 {
		return 0
	}
	c = c.withDefaults()
	return c.MemoryBudget + c.MaxRequestBytes + c.SnapshotBytes + baseMemory
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Encryption.Validate(), c.RPC.Validate(), c.Access.Validate(c.RPC.Auth), c.Admin.Validate()}
	for _, name := range c.Collections {
		if _, err := delta.ParseCollection(name); err != nil {
			errs = append(errs, fmt.Errorf("indexer: collections: %w", err))
		}
	}
	for resource, fields := range c.Fields {
		for _, field := range fields {
			if _, err := definition.ParsePath(field); err != nil {
				errs = append(errs, fmt.Errorf("indexer: fields of %s: %w", resource, err))
			}
		}
	}
	for name, d := range map[string]time.Duration{
		"discover every": c.DiscoverEvery, "forget after": c.ForgetAfter, "checkpoint every": c.CheckpointEvery, "default wait": c.DefaultWait, "max wait": c.MaxWait,
		"snapshot ttl": c.SnapshotTTL, "snapshot max age": c.SnapshotMaxAge, "stale after": c.StaleAfter,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("indexer: %s is %v, want a positive duration", name, d))
		}
	}
	for name, n := range map[string]int{
		"max snapshots": c.MaxSnapshots, "snapshot bytes": c.SnapshotBytes, "max page bytes": c.MaxPageBytes, "max response bytes": c.MaxResponseBytes,
		"memory budget": c.MemoryBudget, "checkpoint rate": c.CheckpointRate,
		"max indexes": c.MaxIndexes, "max watchers": c.MaxWatchers, "max client watchers": c.MaxClientWatchers, "max request bytes": c.MaxRequestBytes, "max initial states": c.MaxInitialStates, "max query calls": c.MaxQueryCalls, "ring changes": c.RingChanges, "ring bytes": c.RingBytes,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("indexer: %s is %d, want a positive number", name, n))
		}
	}
	if !c.Tier.Valid() {
		errs = append(errs, fmt.Errorf("indexer: tier is %q, want %s, %s or %s", c.Tier, TierAuto, TierRaw, TierCompact))
	}
	if c.DefaultWait > c.MaxWait {
		errs = append(errs, fmt.Errorf("indexer: default wait %v exceeds max wait %v", c.DefaultWait, c.MaxWait))
	}
	return errors.Join(errs...)
}

func (c Config) follow() follow.Config {
	return follow.Config{
		Collections: c.Collections, DiscoverEvery: c.DiscoverEvery, ForgetAfter: c.ForgetAfter, Fields: c.Fields, DataDir: c.DataDir,
		CheckpointEvery: c.CheckpointEvery, CheckpointRate: c.CheckpointRate, RingChanges: c.RingChanges, RingBytes: c.RingBytes,
		Tier: c.Tier, MemoryBudget: c.MemoryBudget, Keys: c.Encryption.Keys,
	}
}

func (c Config) read() read.Config {
	return read.Config{
		MaxPageBytes: c.MaxPageBytes, MaxResponseBytes: c.MaxResponseBytes, ExpireEvery: c.DiscoverEvery,
		SnapshotTTL: c.SnapshotTTL, MaxSnapshots: c.MaxSnapshots, SnapshotMaxAge: c.SnapshotMaxAge, SnapshotBytes: c.SnapshotBytes,
	}
}

func (c Config) watch() watch.Config {
	return watch.Config{
		MaxWatchers: c.MaxWatchers, MaxClientWatchers: c.MaxClientWatchers, MaxInitialStates: c.MaxInitialStates, RingBytes: c.RingBytes,
	}
}

func (c Config) wire() wire.Config {
	return wire.Config{MaxQueryCalls: c.MaxQueryCalls, MaxIndexes: c.MaxIndexes, StaleAfter: c.StaleAfter, Replica: c.Replica}
}
