// Package engine is what the queue service asks of a store: whole transactions of
// core/workqueue, applied atomically to one queue at a time.
//
// There are two implementations, memory and redis; the suite in enginetest
// holds both to the same rules.
package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Errors an engine returns. They match with errors.Is.
var (
	// ErrNoQueue: the queue does not exist.
	ErrNoQueue = errors.New("queue: no such queue")
	// ErrDeleted: the queue does not exist because it was deleted. It matches ErrNoQueue.
	ErrDeleted = fmt.Errorf("%w: it was deleted", ErrNoQueue)
	// ErrInUse: the queue is used, or holds keys.
	ErrInUse = errors.New("queue: it is in use")
	// ErrLeased: the queue has keys that are leased.
	ErrLeased = errors.New("queue: keys are leased")
	// ErrPartitions: the partition count of an existing queue cannot change.
	ErrPartitions = errors.New("queue: the partition count is fixed when a queue is created")
	// ErrUnavailable: the store cannot be reached or refuses to write; nothing was applied.
	ErrUnavailable = errors.New("queue: store unavailable")
	// ErrPartial: part of the store cannot be reached, the rest does everything.
	ErrPartial = errors.New("queue: part of the store cannot be reached")
	// ErrUnknown: the store did not answer in time; the transaction may have been applied.
	ErrUnknown = errors.New("queue: store did not answer, the outcome is unknown")
	// ErrFull: the store is out of memory; nothing was applied.
	ErrFull = errors.New("queue: store is full")
	// ErrNoSpace: there is no space for the store's log, so that nothing can be
	// done. It comes with ErrUnavailable.
	ErrNoSpace = errors.New("queue: no space on the store's disk")
	// ErrDenied: the store refuses the service's credentials or commands.
	ErrDenied = errors.New("queue: store denies access")
	// ErrCursor: the cursor was not made by this engine.
	ErrCursor = errors.New("queue: page token is not of this queue")
	// ErrDurability: the store cannot keep the durability a queue asks for.
	ErrDurability = errors.New("queue: store cannot keep this durability")
	// ErrUnsuitable: the store is too old, lacks scripts, or is of another kind than
	// configured; the error says what to set.
	ErrUnsuitable = errors.New("queue: store cannot be used")
	// ErrEviction: the store may drop keys on its own, which would break exclusion;
	// nothing was applied.
	ErrEviction = errors.New("queue: store evicts keys")
)

// Engine stores queues. It is safe for concurrent use.
type Engine interface {
	// Kind is "memory" or "redis".
	Kind() string
	// Generation names the data and the run of the store. When it changes, adds
	// may have been lost and every key must be added again. It is empty until
	// the store has been reached.
	Generation() string
	// Configure creates a queue or changes it while it runs; it replaces the
	// configuration whole. Errors: ErrPartitions, and any store error.
	Configure(ctx context.Context, name string, cfg workqueue.Config) (q Queue, created bool, err error)
	// Open finds an existing queue, also while some of its partitions cannot be
	// reached. Errors: ErrNoQueue, and any store error.
	Open(ctx context.Context, name string) (Queue, error)
	// Delete removes a queue with everything in it; transactions of it answer ErrDeleted
	// from then on. The generation changes when it held keys. Where transactions of several
	// partitions may lease keys meanwhile, pause the queue first. Errors: ErrNoQueue;
	// ErrLeased while keys are leased, unless forced; and any store error, after
	// which it can be called again.
	Delete(ctx context.Context, name string, force bool) error
	// Idle tells how long nobody has used a queue. Uses are transactions with operations or
	// takes of any server, [Engine.Keep], creation and changes of the configuration;
	// the store notes one at most every [UseEvery]. Errors: ErrNoQueue, and any store
	// error, also while a partition cannot be reached.
	Idle(ctx context.Context, name string) (Idle, error)
	// Keep uses a queue, and does nothing else. Errors: ErrNoQueue, and any store error.
	Keep(ctx context.Context, name string) error
	// Expire removes a queue that holds no key (ready, delayed, leased or dead) and was
	// not used since Idle told seen; what is remembered of idle keys goes with it. The
	// store decides: a transaction comes before, and then the queue stays, or after, and then
	// it answers ErrDeleted and was not applied. Errors: ErrInUse, ErrNoQueue, and any
	// store error, after which it can be called again.
	Expire(ctx context.Context, name string, seen Idle) error
	// Names lists the queues that exist, sorted.
	Names(ctx context.Context) ([]string, error)
	// Wakes calls wake with the name of a queue in which another replica made
	// keys ready, or with "" when any queue may have changed, until ctx ends.
	Wakes(ctx context.Context, wake func(queue string)) error
	// Check reaches the store and reports what makes it unsuitable. An error that
	// matches ErrFull or ErrEviction says that it refuses what adds, and does
	// everything else; ErrPartial, that some partitions cannot be reached.
	Check(ctx context.Context) error
	// Close releases what the engine holds. No call may follow.
	Close() error
}

// UseEvery is how far what a store notes of the last use of a queue may lie behind.
const UseEvery = 10 * time.Second

// Idle is how long a queue has not been used.
type Idle struct {
	For   time.Duration // since the last use that was noted, by the store's clock
	Empty bool          // it holds no key, and no lease may be worked on
	Mark  string        // of that use: another one has another mark
}

// Queue is one queue of an [Engine]. It is safe for concurrent use.
type Queue interface {
	// Config is the configuration in force as last seen.
	Config() workqueue.Config
	// Partitions are as many as the configuration says. A key is always in the
	// partition that [PartitionOf] names.
	Partitions() []Partition
}

// Partition is one part of a queue's keys, with its own order, due times and
// leases. The queue's buckets and its dispatch limiter are the first one's: a
// transaction of another is Away. Transactions of one Partition value must not overlap;
// everything else is safe for concurrent use.
type Partition interface {
	// Apply applies one transaction, and returns when the queue's durability has been
	// reached. After an error matching ErrUnknown it may or may not have been
	// applied; after any other error it was not. A queue whose data was lost
	// answers ErrNoQueue.
	Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error)
	// Status counts keys without changing anything.
	Status(ctx context.Context) (Status, error)
	// Items is a page of keys in a state (Idle: any) and the cursor of the next
	// one, empty at the end. A page costs bounded work: it may hold fewer keys
	// than limit, none although it is not the last, or more. A key that exists
	// during the whole walk is met at least once. Errors: ErrCursor, and any
	// store error.
	Items(ctx context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error)
}

// PartitionOf is the partition of a key, of n: FNV-1a, so that it is the same
// in every process and version.
func PartitionOf(key string, n int) int {
	if n <= 1 {
		return 0
	}
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(n))
}

// Status is what a queue holds.
type Status struct {
	Counts      workqueue.Counts
	Closed      bool
	Paused      bool
	OldestReady int64 // microseconds since 1970; zero when nothing is ready
	HeldUntil   int64 // until then no leases, because the store was restarted; zero when there are
	Now         int64 // the store's clock
}
