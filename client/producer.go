package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// ProducerConfig says how a [Producer] works. Queue must be set.
type ProducerConfig struct {
	// Queue is the queue to add to.
	Queue string
	// Session names this producer to the service. Default: random.
	Session string
	// Name tells people who it is: "controllers-0/job".
	Name string
	// Grace is how long a stop waits for answers. Default 3 s.
	Grace time.Duration
	// MaxPending is how many operations may wait for their answer before Send
	// waits. Default 100,000.
	MaxPending int
	// Log receives failures, each when it begins and once a minute. Default: slog.Default().
	Log *slog.Logger
	// OnConnected is called when the Produce stream is open (true, with the store's
	// generation) or broke (false). It may be nil.
	OnConnected func(connected bool, generation string)
}

func (c ProducerConfig) withDefaults() ProducerConfig {
	c.Session = cmp.Or(c.Session, rand.Text())
	c.Name = cmp.Or(c.Name, c.Queue)
	c.Grace = cmp.Or(c.Grace, 3*time.Second)
	c.MaxPending = cmp.Or(c.MaxPending, 100_000)
	c.Log = logger(c.Log)
	return c
}

func (c ProducerConfig) validate() error {
	var faults []error
	if c.Queue == "" {
		faults = append(faults, errors.New("client: producer: queue is empty"))
	}
	if c.Grace < 0 || c.MaxPending < 1 {
		faults = append(faults, fmt.Errorf("client: producer: grace %v or max pending %d is negative", c.Grace, c.MaxPending))
	}
	return errors.Join(faults...)
}

// AddStatus says what an add did with a key.
type AddStatus int32

// What adds do.
const (
	// AddQueued: the key waits now.
	AddQueued = AddStatus(queuev1.AddStatus_ADD_STATUS_QUEUED)
	// AddAlreadyQueued: it waited already.
	AddAlreadyQueued = AddStatus(queuev1.AddStatus_ADD_STATUS_ALREADY_QUEUED)
	// AddMarkedDirty: it is leased, and runs once more when it is settled.
	AddMarkedDirty = AddStatus(queuev1.AddStatus_ADD_STATUS_MARKED_DIRTY)
	// AddDelayed: it waits from ReadyAt on.
	AddDelayed = AddStatus(queuev1.AddStatus_ADD_STATUS_DELAYED)
	// AddShutDown: the session has been shut down, and the key was not added.
	AddShutDown = AddStatus(queuev1.AddStatus_ADD_STATUS_SHUT_DOWN)
	// AddDead: the key was retried too often; it is dead, or will be once it is settled.
	AddDead = AddStatus(queuev1.AddStatus_ADD_STATUS_DEAD)
)

// String is the status in words of logs: "already_queued".
func (s AddStatus) String() string {
	return strings.ToLower(strings.TrimPrefix(queuev1.AddStatus(s).String(), "ADD_STATUS_"))
}

// OpKind is what an [Op] does.
type OpKind int32

// The kinds of an [Op]. The zero value is OpAdd.
const (
	OpAdd            = OpKind(queuev1.ProduceKind_PRODUCE_KIND_ADD)
	OpAddAfter       = OpKind(queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER)
	OpAddRateLimited = OpKind(queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED)
	OpForget         = OpKind(queuev1.ProduceKind_PRODUCE_KIND_FORGET)
	OpNumRequeues    = OpKind(queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES)
)

// Op is one operation on one key.
type Op struct {
	// Key is 1 to 1,024 bytes of UTF-8.
	Key string
	// Kind is what is done with it.
	Kind OpKind
	// Priority is −4 to 3, higher first.
	Priority int
	// Delay is that of OpAddAfter, not negative.
	Delay time.Duration
	// Last makes the last due time of OpAddAfter win, not the earliest.
	Last bool
	// Barrier is what the worker must see before it acts on the key.
	Barrier Barrier
	// Trace is the W3C traceparent of the cause, or empty.
	Trace string
}

// OpResult is what an [Op], or an add of one key, did.
type OpResult struct {
	// Status is what an add did; zero for the other kinds.
	Status AddStatus
	// ReadyAt is when a delayed key becomes ready; else zero.
	ReadyAt time.Time
	// NumRequeues counts the rate-limited adds since the key was forgotten, for
	// OpAddRateLimited and OpNumRequeues.
	NumRequeues int64
}

// Producer adds keys to one queue over one Produce stream. Operations of many
// callers travel together: whatever was called for while a batch was being sent
// makes the next one. They are done in the order of the calls, and duplicates
// of a key within a batch are one operation.
//
// A broken stream is opened again and what was not answered is sent again under
// its number, so that it is done at least once and charges a rate limiter once.
// What the service can not do for the moment (UNAVAILABLE, UNKNOWN) is tried
// again for as long as a caller waits. It is safe for concurrent use; nothing
// is sent before Run.
type Producer struct {
	cfg ProducerConfig
	c   queuev1.QueueServiceClient

	wake chan struct{} // tells the sender that there is something to send

	mu         sync.Mutex // guards what follows
	filling    *batch     // takes operations, or nil
	sealed     []*batch   // to be sent, in this order
	flight     []*batch   // sent and not answered
	pending    int        // operations in these three
	hold       time.Time  // nothing is sent before
	asleep     bool       // the sender waits for wake
	window     int
	lastID     uint64
	generation string
	refused    error // the service refuses the stream itself: operations fail at once
	fault      error // why there is no stream
	stopped    bool
	finished   []*batch // whose callbacks are to be called
	telling    []*batch // whose callbacks are being called
	free       []*queuev1.ProduceOp
	maps       []map[string]int32
}

// NewProducer returns a producer on a connection to the queue service.
func NewProducer(conn grpc.ClientConnInterface, cfg ProducerConfig) (*Producer, error) {
	return newProducer(queuev1.NewQueueServiceClient(conn), cfg)
}

func newProducer(c queuev1.QueueServiceClient, cfg ProducerConfig) (*Producer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Producer{cfg: cfg, c: c, wake: make(chan struct{}, 1), window: 1, lastID: firstID()}, nil
}

// firstID is below the numbers of a session's requests. They begin at the time,
// so that a program that starts again under the session it had goes on above
// those it used: the service refuses a number that was used for something else.
func firstID() uint64 { return uint64(time.Now().UnixMicro()) } //nolint:gosec // after 1970

// Session is the id by which the service knows this producer.
func (p *Producer) Session() string { return p.cfg.Session }

// Queue is the name of the queue.
func (p *Producer) Queue() string { return p.cfg.Queue }

// Do does one operation and waits for its answer. When ctx ends first the
// operation may be done all the same. Errors: those of [Error] that the service
// names ([ErrQueueNotFound], [ErrQueueClosed]), [ErrStopped], and ctx's.
func (p *Producer) Do(ctx context.Context, op Op) (OpResult, error) {
	if err := p.check(&op); err != nil {
		return OpResult{}, err
	}
	p.mu.Lock()
	s, err := p.put(&op)
	p.unlockAndWake()
	if err != nil {
		return OpResult{}, p.wrap(err)
	}
	if err := p.await(ctx, s.b); err != nil {
		return OpResult{}, err
	}
	return p.result(s)
}

// Send does one operation without waiting; done, unless it is nil, is called
// with its answer, must be quick and must not call the producer's waiting
// methods. Send waits only while MaxPending operations are unanswered. An error
// says that the operation will not be done.
func (p *Producer) Send(ctx context.Context, op Op, done func(OpResult, error)) error {
	if err := p.check(&op); err != nil {
		return err
	}
	for {
		p.mu.Lock()
		oldest := p.oldest()
		if p.pending < p.cfg.MaxPending || oldest == nil {
			break
		}
		p.mu.Unlock()
		select {
		case <-oldest.done:
		case <-ctx.Done():
			return p.wrap(ctx.Err())
		}
	}
	s, err := p.put(&op)
	if err == nil && done != nil {
		if s.b.told == nil {
			s.b.told = make(chan struct{})
		}
		s.b.calls = append(s.b.calls, call{s, done})
	}
	p.unlockAndWake()
	return p.wrap(err)
}

// Flush waits until every operation called for before it has been answered, and the
// callback of its caller has returned.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	open := slices.Concat(p.telling, p.flight, p.sealed)
	if p.filling != nil {
		open = append(open, p.filling)
	}
	p.mu.Unlock()
	for _, b := range open {
		select {
		case <-b.done:
		case <-ctx.Done():
			return p.wrap(p.because(ctx.Err()))
		}
		if b.told != nil {
			<-b.told
		}
	}
	return nil
}

// Add makes keys wait now. When it returns nil every key is acknowledged; on an
// error some may be.
func (p *Producer) Add(ctx context.Context, items ...AddItem) (Added, error) {
	return p.add(ctx, Op{Kind: OpAdd}, items)
}

// AddAfter makes keys wait after a delay; the earlier of two due times wins.
func (p *Producer) AddAfter(ctx context.Context, d time.Duration, items ...AddItem) (Added, error) {
	return p.add(ctx, Op{Kind: OpAddAfter, Delay: d}, items)
}

// AddRateLimited makes keys wait as the queue's limiter says.
func (p *Producer) AddRateLimited(ctx context.Context, items ...AddItem) (Added, error) {
	return p.add(ctx, Op{Kind: OpAddRateLimited}, items)
}

// Forget clears the limiter's memory of keys.
func (p *Producer) Forget(ctx context.Context, keys ...string) error {
	_, err := p.add(ctx, Op{Kind: OpForget}, Keys(keys...))
	return err
}

// NumRequeues is how often a key was added rate-limited since it was forgotten.
func (p *Producer) NumRequeues(ctx context.Context, key string) (int64, error) {
	r, err := p.Do(ctx, Op{Kind: OpNumRequeues, Key: key})
	return r.NumRequeues, err
}

func (p *Producer) add(ctx context.Context, op Op, items []AddItem) (Added, error) {
	for i := range items {
		op.Key, op.Priority, op.Barrier, op.Trace = items[i].Key, items[i].Priority, items[i].Barrier, items[i].Trace
		if err := p.check(&op); err != nil {
			return Added{}, err
		}
	}
	if len(items) == 0 {
		return Added{}, nil
	}
	slots := make([]slot, len(items))
	p.mu.Lock()
	var err error
	for i := range items {
		op.Key, op.Priority, op.Barrier, op.Trace = items[i].Key, items[i].Priority, items[i].Barrier, items[i].Trace
		if slots[i], err = p.put(&op); err != nil {
			break
		}
	}
	p.unlockAndWake()
	if err != nil {
		return Added{}, p.wrap(err)
	}
	added := Added{Results: make([]OpResult, 0, len(items))}
	for _, s := range slots {
		if err := p.await(ctx, s.b); err != nil {
			return added, err
		}
		r, err := p.result(s)
		if err != nil {
			return added, err
		}
		added.Results = append(added.Results, r)
		added.Generation = s.b.generation
	}
	return added, nil
}

// await waits for a batch.
func (p *Producer) await(ctx context.Context, b *batch) error {
	end := ctx.Done()
	if end == nil {
		<-b.done
		return nil
	}
	select {
	case <-b.done:
		return nil
	case <-end:
		b.waiting.Add(-1)
		return p.wrap(p.because(ctx.Err()))
	}
}

// because adds to the end of a context what the operation was waiting for.
func (p *Producer) because(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, p.fault)
}

func (p *Producer) wrap(err error) error { return wrap(err, "add to queue %s", p.cfg.Queue) }

const (
	maxKey      = 1024
	minPriority = -4
	maxPriority = 3
)

// check refuses what the service would refuse: one caller's fault must not be
// that of everybody in its batch.
func (p *Producer) check(op *Op) error {
	var field, what string
	switch {
	case op.Key == "":
		field, what = "key", "is empty"
	case len(op.Key) > maxKey:
		field, what = "key", fmt.Sprintf("is %d bytes, the most is %d", len(op.Key), maxKey)
	case !utf8.ValidString(op.Key):
		field, what = "key", "is not UTF-8"
	case op.Priority < minPriority || op.Priority > maxPriority:
		field, what = "priority", fmt.Sprintf("%d is not between %d and %d", op.Priority, minPriority, maxPriority)
	case op.Delay < 0:
		field, what = "delay", fmt.Sprintf("%v is negative", op.Delay)
	case op.Delay != 0 && op.Kind != OpAddAfter:
		field, what = "delay", "is for OpAddAfter only"
	case !utf8.ValidString(op.Trace):
		field, what = "traceparent", "is not UTF-8"
	default:
		return nil
	}
	return &Error{
		Op: "add to queue " + p.cfg.Queue, Code: codes.InvalidArgument, Fields: map[string]string{field: what},
		err: status.Error(codes.InvalidArgument, field+" "+what),
	}
}

// refusal is a server's error of a batch or an operation.
func (p *Producer) refusal(e *queuev1.ProduceError) error {
	code := codes.Code(uint32(max(0, e.GetCode()))) //nolint:gosec // a gRPC code
	return &Error{
		Op: "add to queue " + p.cfg.Queue, Code: code, Reason: e.GetReason(), RetryAfter: e.GetRetryAfter().AsDuration(),
		err: status.Error(code, e.GetMessage()),
	}
}
