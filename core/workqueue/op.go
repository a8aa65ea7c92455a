package workqueue

import (
	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/expectations"
)

// OpKind says what an [Op] does.
type OpKind uint8

// The operations of a transaction.
const (
	OpAdd      OpKind = iota + 1 // Key, Level, Delay, Last, Limited, Once, Barrier, Trace
	OpSettle                     // Key, Token, Outcome, Delay, Reason, ReadAt, Wrote, Level if Relevel
	OpExtend                     // Key, Token, For; Shorten, Known
	OpForget                     // Key
	OpRequeues                   // Key
	OpSave                       // Key, Token, Data
	OpExpect                     // Key, Token, Owner, Creates, Deletes
	OpObserve                    // Key, Owner, Creates, Deletes; also reads
	OpUnexpect                   // Key
	OpInspect                    // Key
	OpClose
	OpOpen
	OpPause        // no leases until OpResume; everything else goes on
	OpResume       //
	OpRetryNow     // Key: a delayed or dead key waits now
	OpRevoke       // Key: the lease ends, the key waits again, uncounted
	OpDelete       // Key: everything known of a key that is not held
	OpBackoffGet   // Key (an id of a name space of its own): the entry, expired or not
	OpBackoffNext  // Key, Event, Random
	OpBackoffReset // Key: Reset and DeleteEntry
	_              // a number that logs have for an operation that is gone
	OpReserve      // Count: tokens of every bucket of the limiter, for another partition; negative gives back
	OpAdmit        // Count: tokens of the dispatch limiter, for another partition; negative gives back
	OpAudit        // Count, once a transaction: some of the keys are looked at, and those held without a deadline get one of MaxLease
	OpPutBack      // Key, Outcome (Done: idle, Release: waits, Dead), Level, Delay, Count failures, More: what a backup has of a key that nobody holds
)

// Outcome is how a lease ends.
type Outcome uint8

// The outcomes of a settlement.
const (
	Done    Outcome = iota + 1 // the limiter keeps its memory
	Forget                     // done, and the limiter forgets
	Retry                      // done, and added again rate-limited
	After                      // done and forgotten, and added again after Delay
	Release                    // given back, now or after Delay, uncounted
	Dead                       // kept aside until somebody adds it
)

// Op is one operation on one key. Only the fields named beside its kind are
// read. Durations are in microseconds.
type Op struct {
	Kind    OpKind
	Outcome Outcome
	Level   uint8
	Relevel bool // Level replaces the level of the lease
	Last    bool // the last due time wins, not the earliest
	Limited bool // the delay is the limiter's
	Shorten bool // extend: the earlier deadline wins, unless it is later than Known
	Key     string
	Token   uint64
	Delay   int64
	For     int64
	Known   int64 // shorten: the last deadline the caller knows of; zero for any
	Trace   string
	// Once names a limited add, zero for none: while the delay that an add of
	// this name set is pending, another of the same name changes nothing.
	Once   uint64
	Count  int     // tokens; audit: where to go on, a former reply's Next, zero for the start
	Event  int64   // back-off: when it happened; zero for now
	Random float64 // back-off: [0,1), for the jitter
	More   *More   // nil when nothing of it is set
}

// More is what few operations carry.
type More struct {
	Barrier          Barrier // add: required; settle: what the worker read at
	Wrote            Barrier
	Reason           string
	Data             []byte
	Owner            string
	Creates, Deletes []string
	Writes           []Write // settle: for people, no rule reads them
}

// Write is an object that a worker wrote, and its version by that; any may be empty.
type Write struct{ Verb, Collection, Key, RV string }

// Status is what an operation did.
type Status uint8

// The statuses of a reply.
const (
	OK            Status = iota // done as asked
	Queued                      // add: waits now
	AlreadyQueued               // add: waited already
	MarkedDirty                 // add: held, runs once more
	Delayed                     // add: waits from ReadyAt on
	Closed                      // add: the queue is closed, nothing changed
	BarrierFull                 // add: more than MaxMarks collections, nothing changed
	Settled                     // token: the lease was live and the operation applied
	Requeued                    // settle: ended, and waits again because it was added meanwhile
	Lost                        // token: stale, nothing changed
	NotLeased                   // token: nobody holds the key, nothing changed
	Unchanged                   // operator: there was nothing to do
	Held                        // operator: somebody holds the key, nothing changed
	Died                        // add: retried too often; dead, or will be once it is settled as Done
)

// Reply is the outcome of one [Op].
type Reply struct {
	Status   Status
	Requeues int
	ReadyAt  int64 // add: Delayed; settle: when a retried key becomes ready
	Deadline int64 // extend
	Expect   *expectations.Set
	Item     *Item
	Backoff  BackoffEntry
	Count    int       // collected; reserved; admitted; audited keys that got a deadline
	From     []float64 // reserved: per bucket, where its tokens begin (see Reserved)
	// Next is, of admit, when the next token is there, zero when Count is all that
	// was asked; of audit where the next step goes on, zero at the end.
	Next int64
}

// BackoffEntry is one id's delay in microseconds and when it was last moved;
// zero when nothing is known.
type BackoffEntry = backoff.Entry

// Reserved is tokens of one bucket of the limiter, taken for a partition that
// is not the buckets' own by an OpReserve in the transaction of the first partition:
// Count tokens whose theoretical arrival times begin at From, in microseconds,
// one interval apart.
type Reserved struct {
	From  float64
	Count int
}

// Take asks for leases for one holder.
type Take struct {
	Holder string
	Max    int
	For    int64 // lease time in microseconds, at most the queue's MaxLease; zero means the queue's
}

// Transaction is one atomic step: the operations in order, then keys whose due time
// has come, then leases that expired, then leases in the order of Takes.
type Transaction struct {
	Ops   []Op
	Takes []Take
	// Away says that the queue's buckets are in another partition: Reserved
	// holds, per bucket of the limiter, at least as many tokens as Ops may
	// charge, and Admitted is how many leases the dispatch limiter allows.
	Away     bool
	Reserved []Reserved
	Admitted int
	// KeepLeases says that no lease expires in this transaction: the caller that sets it does not
	// know whether the clock is right.
	KeepLeases bool
}

// Lease is the right to process a key until Deadline.
type Lease struct {
	Take     int // index of the Take it answers
	Key      string
	Token    uint64
	Deadline int64
	AddedAt  int64
	ReadyAt  int64
	Level    uint8
	Attempt  int
	Requeues int
	Barrier  Barrier
	Traces   []string
	State    []byte
	Expect   *expectations.Set
}

// Counts is how many keys are in each state.
type Counts struct {
	Ready, Delayed, Processing, Dirty, Dead int
}

// Result is what a transaction did.
type Result struct {
	Now     int64 // the store's clock
	Replies []Reply
	Leases  []Lease
	// NextDue is when the next key falls due or the next lease expires; zero
	// when nothing waits for time. It may lie in the past when a transaction had more
	// to move than SweepMax.
	NextDue int64
	Counts  Counts
	// What happened in the transaction.
	Added, Retried, Promoted, Expired, Died int
	// NextSweep is when the next of what is kept for a time only (barriers of
	// idle keys, expectations, back-off entries) expires, so that a transaction can free
	// it; zero when nothing is kept. Only transactions without operations tell.
	NextSweep int64
	// Corrected is what was done about a clock that stepped, before the transaction; nil
	// for nothing.
	Corrected *Correction
	// Spent is how many of Reserved were used, the same of every bucket.
	Spent int
}

// Correction is of a clock that stepped: it was set right by By, to Now, in a
// transaction of its own without operations.
type Correction struct{ Now, By int64 }

// State is where a key stands.
type State uint8

// The states of a key.
const (
	Idle State = iota
	Ready
	Waiting // for its due time only
	Processing
	Dirty
	StateDead
)

// Item is everything known about one key.
type Item struct {
	Key          string
	State        State
	Token        uint64 // of the present lease
	Holder       string
	Deadline     int64
	Requeues     int
	Attempt      int
	Level        uint8
	AddedAt      int64
	ReadyAt      int64
	DelayedUntil int64
	Barrier      Barrier
	StateBytes   int
	Data         []byte // of StateBytes; must not be changed
	Expect       *expectations.Set
	Reason       string
	Holders      []string // the last that held it and did not settle it, the oldest first
}
