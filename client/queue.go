package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Queue is one queue of a queue service. It is safe for concurrent use.
type Queue struct {
	c       queuev1.QueueServiceClient
	admin   queuev1.QueueAdminServiceClient
	name    string
	session string
}

// NewQueue returns a client for the named queue, by custom
// "<cluster>/<controller>". Session names this process to the service, for
// ShutDown; it may be empty.
func NewQueue(conn grpc.ClientConnInterface, name, session string) *Queue {
	return &Queue{c: queuev1.NewQueueServiceClient(conn), admin: queuev1.NewQueueAdminServiceClient(conn), name: name, session: session}
}

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// AddItem is a key to be added.
type AddItem struct {
	Key string
	// Priority is −4 to 3, higher first.
	Priority int
	// Barrier is what the worker must see before it acts on the key.
	Barrier Barrier
	// Trace is the W3C traceparent of the cause, or empty.
	Trace string
}

// Keys makes items of bare keys.
func Keys(keys ...string) []AddItem {
	items := make([]AddItem, len(keys))
	for i, key := range keys {
		items[i].Key = key
	}
	return items
}

// Added is the answer to an add: one result per item, in order, and the store's
// generation (see [Trigger]).
type Added struct {
	Results    []OpResult
	Generation string
}

const maxItems = 1000 // of one request

// Add makes keys wait now. When it returns nil every key is acknowledged; on an
// error some may be. Errors: [ErrQueueClosed], [ErrQueueNotFound].
func (q *Queue) Add(ctx context.Context, items ...AddItem) (Added, error) {
	return q.add(items, func(items []*queuev1.AddItem) (answer, error) {
		return q.c.Add(ctx, &queuev1.AddRequest{Queue: q.name, Items: items, SessionId: q.session})
	})
}

// AddAfter makes keys wait after a delay; the earlier of two due times wins. For the
// last one to win, see Op.Last of a [Producer].
func (q *Queue) AddAfter(ctx context.Context, d time.Duration, items ...AddItem) (Added, error) {
	return q.add(items, func(items []*queuev1.AddItem) (answer, error) {
		return q.c.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: q.name, Items: items, Delay: durationpb.New(d), SessionId: q.session})
	})
}

// AddRateLimited makes keys wait as the queue's limiter says.
func (q *Queue) AddRateLimited(ctx context.Context, items ...AddItem) (Added, error) {
	return q.add(items, func(items []*queuev1.AddItem) (answer, error) {
		return q.c.AddRateLimited(ctx, &queuev1.AddRateLimitedRequest{Queue: q.name, Items: items, SessionId: q.session})
	})
}

type answer interface {
	GetResults() []*queuev1.AddResult
	GetGeneration() string
}

func (q *Queue) add(items []AddItem, call func([]*queuev1.AddItem) (answer, error)) (Added, error) {
	var added Added
	for len(items) > 0 {
		n := min(len(items), maxItems)
		batch := make([]*queuev1.AddItem, n)
		for i, item := range items[:n] {
			batch[i] = &queuev1.AddItem{Key: item.Key, Priority: int32(item.Priority), Barrier: item.Barrier.proto(), Traceparent: item.Trace}
		}
		resp, err := call(batch)
		if err != nil {
			return added, wrap(err, "add to queue %s", q.name)
		}
		for _, r := range resp.GetResults() {
			added.Results = append(added.Results, OpResult{Status: AddStatus(r.GetStatus()), ReadyAt: moment(r.GetReadyAt()), NumRequeues: r.GetNumRequeues()})
		}
		added.Generation = resp.GetGeneration()
		items = items[n:]
	}
	return added, nil
}

// Forget clears the limiter's memory of keys.
func (q *Queue) Forget(ctx context.Context, keys ...string) error {
	_, err := q.c.Forget(ctx, &queuev1.ForgetRequest{Queue: q.name, Keys: keys})
	return wrap(err, "forget in queue %s", q.name)
}

// NumRequeues is how often a key was added rate-limited since it was forgotten.
func (q *Queue) NumRequeues(ctx context.Context, key string) (int64, error) {
	resp, err := q.c.NumRequeues(ctx, &queuev1.NumRequeuesRequest{Queue: q.name, Keys: []string{key}})
	if err != nil {
		return 0, wrap(err, "num requeues in queue %s", q.name)
	}
	if len(resp.GetCounts()) != 1 {
		return 0, fmt.Errorf("client: queue %s answered %d counts for one key", q.name, len(resp.GetCounts()))
	}
	return resp.GetCounts()[0], nil
}

// Counts is how many keys a queue holds in each state.
type Counts struct {
	// Ready and not leased: client-go's Len.
	Ready int64
	// Delayed wait for a due time; such a key may be ready or leased as well.
	Delayed int64
	// Processing are leased, Dirty leased and added again meanwhile.
	Processing, Dirty int64
	// Dead are kept aside.
	Dead int64
}

// Len counts the queue's keys; Ready is client-go's Len.
func (q *Queue) Len(ctx context.Context) (Counts, error) {
	resp, err := q.c.Len(ctx, &queuev1.LenRequest{Queue: q.name})
	if err != nil {
		return Counts{}, wrap(err, "len of queue %s", q.name)
	}
	c := resp.GetCounts()
	return Counts{Ready: c.GetReady(), Delayed: c.GetDelayed(), Processing: c.GetProcessing(), Dirty: c.GetDirty(), Dead: c.GetDead()}, nil
}

// Configure creates the queue or changes it while it runs; what is zero in cfg is reset
// to its default. It returns the store's generation.
func (q *Queue) Configure(ctx context.Context, cfg QueueConfig) (generation string, err error) {
	resp, err := q.admin.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: cfg.proto(q.name)})
	if err != nil {
		return "", wrap(err, "configure queue %s", q.name)
	}
	return resp.GetGeneration(), nil
}

// Pause hands out no more keys until Resume; adds and settlements go on. For the other
// calls of operators, use the generated client of QueueAdminService.
func (q *Queue) Pause(ctx context.Context) error {
	_, err := q.admin.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: q.name})
	return wrap(err, "pause queue %s", q.name)
}

// Resume undoes Pause.
func (q *Queue) Resume(ctx context.Context) error {
	_, err := q.admin.ResumeQueue(ctx, &queuev1.ResumeQueueRequest{Queue: q.name})
	return wrap(err, "resume queue %s", q.name)
}

// Delete drops keys that are not leased, and everything kept with them; it leaves the
// others as they are.
func (q *Queue) Delete(ctx context.Context, keys ...string) error {
	for chunk := range slices.Chunk(keys, maxItems) {
		if _, err := q.admin.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: q.name, Keys: chunk}); err != nil {
			return wrap(err, "delete keys of queue %s", q.name)
		}
	}
	return nil
}

// Generation is the store's generation: it changes when keys may have been lost.
func (q *Queue) Generation(ctx context.Context) (string, error) {
	resp, err := q.admin.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: q.name, Partial: true})
	if err != nil {
		return "", wrap(err, "generation of queue %s", q.name)
	}
	return resp.GetGeneration(), nil
}

// SaveState keeps up to 4 KiB with a leased key; they come with its next lease.
// Errors: [ErrLeaseLost].
func (q *Queue) SaveState(ctx context.Context, key string, token uint64, state []byte) error {
	resp, err := q.c.SaveState(ctx, &queuev1.SaveStateRequest{Queue: q.name, Key: key, Token: token, State: state})
	if err != nil {
		return wrap(err, "save state of %s in queue %s", key, q.name)
	}
	return held(resp.GetStatus(), key)
}

// Expectations is what a key's controller waits to see before it counts
// children again; those of another owner UID do not hold.
type Expectations struct {
	OwnerUID             string
	Creations, Deletions []string
	// Token is the lease they were stored under, and StoredAt when; Expect sets
	// both by itself.
	Token    uint64
	StoredAt time.Time
}

// Expect stores the names of children about to be created or deleted, before
// they are. It replaces what was expected before. Errors: [ErrLeaseLost], and
// then no child must be touched.
func (q *Queue) Expect(ctx context.Context, key string, token uint64, e Expectations) error {
	resp, err := q.c.Expect(ctx, &queuev1.ExpectRequest{Queue: q.name, Key: key, Token: token, OwnerUid: e.OwnerUID, Creations: e.Creations, Deletions: e.Deletions})
	if err != nil {
		return wrap(err, "expect for %s in queue %s", key, q.name)
	}
	return held(resp.GetStatus(), key)
}

// Observe takes names off a key's expectations and returns what is left; nil
// when nothing is.
func (q *Queue) Observe(ctx context.Context, key string, seen Expectations) (*Expectations, error) {
	resp, err := q.c.Observe(ctx, &queuev1.ObserveRequest{Queue: q.name, Key: key, OwnerUid: seen.OwnerUID, Creations: seen.Creations, Deletions: seen.Deletions})
	if err != nil {
		return nil, wrap(err, "observe for %s in queue %s", key, q.name)
	}
	return fromExpectations(resp.GetExpectations()), nil
}

// Expectations returns what is still expected of a key; nil when nothing is.
func (q *Queue) Expectations(ctx context.Context, key string) (*Expectations, error) {
	resp, err := q.c.GetExpectations(ctx, &queuev1.GetExpectationsRequest{Queue: q.name, Key: key})
	if err != nil {
		return nil, wrap(err, "expectations of %s in queue %s", key, q.name)
	}
	return fromExpectations(resp.GetExpectations()), nil
}

func fromExpectations(e *queuev1.Expectations) *Expectations {
	if e == nil || len(e.GetCreations())+len(e.GetDeletions()) == 0 {
		return nil
	}
	return &Expectations{OwnerUID: e.GetOwnerUid(), Creations: e.GetCreations(), Deletions: e.GetDeletions(), Token: e.GetToken(), StoredAt: e.GetStoredAt().AsTime()}
}

func gone(status queuev1.SettleStatus) bool {
	return status == queuev1.SettleStatus_SETTLE_STATUS_LOST || status == queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED
}

func held(status queuev1.SettleStatus, key string) error {
	if gone(status) {
		return fmt.Errorf("%w: %s", ErrLeaseLost, key)
	}
	return nil
}
