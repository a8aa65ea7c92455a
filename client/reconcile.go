package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// A Reconciler brings the world to what a key asks for. It is called by several
// goroutines, never by two with the same key. Its context ends when the lease is
// about to (context.Cause tells: [ErrLeaseLost], [ErrTimeout], [ErrStopping]);
// it must return then, and what it returns hardly matters.
//
// What the return means:
//
//	nil, zero Result      done and forgotten
//	nil, After > 0        done, forgotten, and run again after that time
//	nil, Outcome          as the outcome says
//	error                 run again as the rate limiter says; Outcome and After are ignored
//	Terminal(error)       kept aside as dead until somebody adds the key again
//	ErrRevisionNotReached, ErrNotSynced
//	                      given back uncounted and run again shortly
type Reconciler interface {
	Reconcile(ctx context.Context, item Item) (Result, error)
}

// ReconcilerFunc is a function as a [Reconciler].
type ReconcilerFunc func(ctx context.Context, item Item) (Result, error)

// Reconcile calls f.
func (f ReconcilerFunc) Reconcile(ctx context.Context, item Item) (Result, error) {
	return f(ctx, item)
}

// Item is a key under a lease.
type Item struct {
	Queue, Key string
	// Token fences the lease: it grows with every lease of the key.
	Token uint64
	// Attempt counts the leases since the key was last settled: above 1 an
	// earlier holder was lost.
	Attempt int64
	// NumRequeues counts the rate-limited adds since the key was forgotten.
	NumRequeues int64
	// Priority is what it waited with.
	Priority int
	// AddedAt is when it was first added, ReadyAt when it became ready.
	AddedAt, ReadyAt time.Time
	// Barrier is what must be seen before acting; see AtLeast.
	Barrier Barrier
	// State is what SaveState kept.
	State []byte
	// Expectations is what the store still expects of the key; nil for nothing.
	Expectations *Expectations
	// Traces are the traceparents of what caused it, newest last, at most 8.
	Traces []string

	span  trace.SpanContext
	lease *task
	mu    *sync.Mutex // guards lease.ends
}

// Deadline is when the reconcile's context will end by this process's own clock,
// a margin before the lease does, unless the lease is extended until then. It
// moves as that happens.
func (i Item) Deadline() time.Time {
	if i.lease == nil {
		return time.Time{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lease.ends
}

// Alive is nil while the lease holds by this process's own clock, and wraps
// [ErrLeaseLost] from then on. Asked right before a write it is surer than the
// context, which ends only when this process runs: after a pause it may be late.
func (i Item) Alive() error {
	if i.lease == nil || i.lease.context.Err() == nil && time.Now().Before(i.Deadline()) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrLeaseLost, i.Key)
}

// AtLeast is the least revision that a read of the collection must be of; zero
// when any will do.
func (i Item) AtLeast(collection string) Revision { return i.Barrier[collection] }

func fromLease(i *Item, l *queuev1.Lease, queue string) {
	i.Queue, i.Key, i.Token, i.Attempt, i.NumRequeues = cmp.Or(l.GetQueue(), queue), l.GetKey(), l.GetToken(), l.GetAttempt(), l.GetNumRequeues()
	i.Priority, i.State, i.Traces = int(l.GetPriority()), l.GetState(), l.GetTraceparents()
	i.AddedAt, i.ReadyAt = instant(l.GetAddedUs(), l.GetAddedAt()), instant(l.GetReadyUs(), l.GetReadyAt())
	i.Barrier, i.Expectations = fromBarrier(l.GetBarrier()), fromExpectations(l.GetExpectations())
}

// instant is a time as a compact message has it, or as any other has.
func instant(us int64, at *timestamppb.Timestamp) time.Time {
	if us != 0 || at == nil {
		return time.UnixMicro(us).UTC()
	}
	return at.AsTime()
}

// Outcome says how a lease ends. The zero value follows from the rest of the [Result].
type Outcome int

// The outcomes.
const (
	// OutcomeForget: finished, and the limiter forgets the key.
	OutcomeForget Outcome = iota + 1
	// OutcomeDone: finished; the limiter keeps its memory.
	OutcomeDone
	// OutcomeRateLimited: run again as the limiter says.
	OutcomeRateLimited
	// OutcomeAfter: forgotten, and run again after Result.After.
	OutcomeAfter
	// OutcomeRelease: given back uncounted, at once or after Result.After.
	OutcomeRelease
	// OutcomeDead: kept aside, with Result.Reason, until somebody adds the key.
	OutcomeDead
	// OutcomeAbandon: not settled at all. The lease runs out, and the next holder
	// sees by Item.Attempt that this one did not say what it did.
	OutcomeAbandon
)

var outcomes = map[Outcome]struct {
	name string
	wire queuev1.Outcome
}{
	OutcomeForget:      {"forget", queuev1.Outcome_OUTCOME_FORGET},
	OutcomeDone:        {"done", queuev1.Outcome_OUTCOME_DONE},
	OutcomeRateLimited: {"rate_limited", queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED},
	OutcomeAfter:       {"after", queuev1.Outcome_OUTCOME_RETRY_AFTER},
	OutcomeRelease:     {"release", queuev1.Outcome_OUTCOME_RELEASE},
	OutcomeDead:        {"dead", queuev1.Outcome_OUTCOME_DEAD},
	OutcomeAbandon:     {"abandon", queuev1.Outcome_OUTCOME_UNSPECIFIED},
}

func (o Outcome) wire() queuev1.Outcome {
	if o == OutcomeForget {
		return queuev1.Outcome_OUTCOME_FORGET
	}
	return outcomes[o].wire
}

// String is the outcome as a metric's label: "forget", "rate_limited".
func (o Outcome) String() string { return outcomes[o].name }

// Result is how a reconcile ended.
type Result struct {
	Outcome Outcome
	// After is the delay of OutcomeAfter and OutcomeRelease. With no Outcome set
	// it means OutcomeAfter.
	After time.Duration
	// Reason is kept for people to see, at most 1,024 bytes. An error's text is
	// used when it is empty.
	Reason string
	// ReadAt is what the world was read at, per collection. The upper bounds, and what
	// the key's barrier holds above the revisions, are its next barrier: the next
	// worker may meet another indexer, and never decides on an older world than this
	// one did.
	ReadAt Reading
	// Wrote are the revisions of own writes, per collection: the next worker of
	// the key will see them. What was seen elsewhere than in the index, by a live
	// read, belongs here too.
	Wrote Barrier
	// Priority, when set, is that of the next run; else the item's.
	Priority *int
}

// Causes of a reconciler's context ending, beside [ErrLeaseLost].
var (
	// ErrTimeout: the reconcile took longer than WorkerConfig.Timeout.
	ErrTimeout = errors.New("client: reconcile took too long")
	// ErrStopping: the worker is stopping and the grace period is over.
	ErrStopping = errors.New("client: worker is stopping")
)

// Terminal marks an error that trying again cannot heal: the key is kept aside
// as dead. Nil stays nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminalError{err}
}

type terminalError struct{ err error }

func (e *terminalError) Error() string { return "terminal: " + e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }

// PanicError is a panic of a reconciler, which counts as an error of its key.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("client: reconciler panicked: %v", e.Value) }

// barrierRetry is when a key comes back whose barrier the index did not reach.
const barrierRetry = 500 * time.Millisecond

// decide applies the table of [Reconciler]. Cause is why the context ended, if it did.
func decide(res Result, err, cause error) Result {
	if err == nil {
		if res.Outcome == 0 {
			res.Outcome = OutcomeForget
			if res.After > 0 {
				res.Outcome = OutcomeAfter
			}
		}
		if res.Outcome != OutcomeAfter && res.Outcome != OutcomeRelease || res.After < 0 {
			res.After = 0
		}
		return res
	}
	if res.Reason == "" {
		res.Reason = err.Error()
	}
	res.After = 0
	switch _, terminal := errors.AsType[*terminalError](err); {
	case terminal:
		res.Outcome = OutcomeDead
	case errors.Is(err, ErrRevisionNotReached), errors.Is(err, ErrNotSynced), errors.Is(err, ErrNotExact):
		res.Outcome, res.After = OutcomeRelease, barrierRetry
	case errors.Is(cause, ErrLeaseLost), errors.Is(cause, ErrStopping):
		res.Outcome = OutcomeRelease
	default:
		res.Outcome = OutcomeRateLimited
	}
	return res
}

const maxReason = 1024

// settle writes r into a settlement, of which nothing stays.
func (r *Result) settle(s *queuev1.Settlement, queue, key string, token uint64) {
	s.Queue, s.Key, s.Token, s.Outcome, s.Reason = queue, key, token, r.Outcome.wire(), r.Reason
	s.Delay, s.ReadAt, s.Wrote, s.Priority, s.Writes = nil, nil, nil, nil, nil
	if r.Reason != "" {
		s.Reason = clip(r.Reason, maxReason)
	}
	if len(r.ReadAt)+len(r.Wrote) > 0 {
		// The service keeps what was written, and of the rest what lies above ReadAt.
		keep := r.ReadAt.Uppers()
		keep.Merge(r.Wrote)
		s.ReadAt, s.Wrote = r.ReadAt.Revisions().proto(), keep.proto()
	}
	if r.Outcome == OutcomeAfter || r.Outcome == OutcomeRelease && r.After > 0 {
		s.Delay = durationpb.New(r.After)
	}
	if r.Priority != nil {
		s.Priority = wrapperspb.Int32(int32(*r.Priority))
	}
}

// clip cuts s to at most n bytes of valid UTF-8.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
		for s != "" && !utf8.ValidString(s[max(0, len(s)-utf8.UTFMax):]) {
			s = s[:len(s)-1]
		}
	}
	if !utf8.ValidString(s) {
		return fmt.Sprintf("%.*q", (n-2)/10, s) // a quoted rune takes at most ten bytes
	}
	return s
}

// permanent reports whether asking again with the same Hello is useless.
func permanent(err error) bool { return rpc.Violations(err) != nil }
