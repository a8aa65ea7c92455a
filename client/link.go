package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// link is one Work stream. Its sender is the goroutine that opened it; a second
// goroutine reads.
type link struct {
	s       queuev1.QueueService_WorkClient
	cancel  context.CancelFunc
	read    chan error    // how reading ended
	leave   chan struct{} // closed when the server asks for another stream
	settled chan struct{} // holds one token when a batch was answered
	goodbye bool          // sender's own

	// Guarded by Worker.mu:
	left    bool        // another stream takes over
	extends []time.Time // when unanswered ExtendBatches were sent
	credit  int         // keys the server may still assign
	anchor  anchor      // of the server's clock; zero when it does not tell it
	pings   uint64      // sent
	pinged  time.Time   // when the last one was, or the hello
	awaits  bool        // it was not answered
	unsure  bool        // leases have come whose end only an extension tells
}

var errReconnect = errors.New("client: server asks for another stream")

const (
	maxBatch      = 1000
	maxUnanswered = 16 // batches; the service remembers the answers to 32
)

// stayLinked keeps a stream open until ctx ends (nil), the session is shut down
// or the service refuses what can only be refused again. A server that knows no queue
// at the first attempt is another service; later it may be one of several replicas.
func (w *Worker) stayLinked(ctx context.Context) error {
	wait := newWait()
	var said warning
	var old *link
	welcomed := false
	for {
		l, err := w.open(ctx)
		welcomed = welcomed || err == nil
		if old != nil {
			old.cancel()
			old = nil
		}
		if err == nil {
			wait.Reset()
			said.over()
			err = w.serve(ctx, l)
			w.unlinked()
			if errors.Is(err, errReconnect) {
				old = l // until the next one has taken over its leases
				continue
			}
			l.cancel()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case closed(w.idle):
			return nil // the server ends a stream after the goodbye
		case rpc.Code(err) == codes.Unimplemented && !welcomed:
			return wrap(noQueueService(err), "work on queue %s", w.cfg.Queue)
		case permanent(err) && w.dropPoison(err):
		case permanent(err):
			return wrap(err, "work on queue %s", w.cfg.Queue)
		}
		said.log(w.cfg.Log, "work stream broke", err, slog.String("queue", w.cfg.Queue))
		if !wait.Sleep(ctx, rpc.RetryDelay(err)) {
			return nil
		}
	}
}

// noQueueService says what to look at when a server does not know what a queue is.
func noQueueService(err error) error {
	return fmt.Errorf("the server at this address is not a queue service (7442 is its default port, 7441 the index's): %w", err)
}

// open opens a stream, says hello with every lease in hand, and sends again
// what was not answered.
func (w *Worker) open(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &link{cancel: cancel, read: make(chan error, 1), leave: make(chan struct{}), settled: make(chan struct{}, 1)}
	welcome, sent, err := w.hello(ctx, l)
	if err != nil {
		cancel()
		return nil, err
	}
	w.mu.Lock()
	if d := welcome.GetLeaseDuration().AsDuration(); d > 0 {
		if d < w.cfg.Lease && w.lease != d { // told once
			w.cfg.Log.Warn("the queue's longest lease is shorter than what was asked for",
				slog.String("queue", w.cfg.Queue), slog.Duration("asked", w.cfg.Lease), slog.Duration("granted", d))
		}
		w.lease = d
	}
	if clock := welcome.GetClockUs(); clock != 0 {
		l.anchor = anchor{l.pinged, clock}
	}
	w.link = l
	again := slices.Clone(w.unsettled)
	for _, batch := range again {
		batch.HoldCredit = true // nobody can tell whether it would come back once or twice
	}
	w.mu.Unlock()
	w.lose(welcome.GetLost())
	if w.cfg.OnConnected != nil {
		w.cfg.OnConnected(true, welcome.GetGeneration())
	}
	go w.receive(l)
	for _, batch := range again {
		if err := l.s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: batch}}); err != nil {
			break // receive knows why
		}
	}
	if sent > 0 {
		w.extend(l)
	}
	return l, nil
}

func (w *Worker) hello(ctx context.Context, l *link) (*queuev1.Welcome, int, error) {
	hello := &queuev1.Hello{
		SessionId: w.cfg.Session, Client: w.cfg.Name, Queues: []string{w.cfg.Queue}, LeaseDuration: duration(w.cfg.Lease), Compact: true, Partial: true,
	}
	s, resp, err := handshake(ctx, l.cancel, w.c.Work, func() *queuev1.WorkRequest {
		hello.Resume = w.inHand()
		l.pinged = time.Now()
		return &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: hello}}
	})
	if err != nil {
		return nil, 0, err
	}
	if resp.GetWelcome() == nil {
		return nil, 0, fmt.Errorf("client: queue service began with %T, not a welcome", resp.GetKind())
	}
	l.s = s
	return resp.GetWelcome(), len(hello.GetResume()), nil
}

// inHand names every lease that is not known to be settled.
func (w *Worker) inHand() []*queuev1.LeaseRef {
	w.mu.Lock()
	defer w.mu.Unlock()
	var refs []*queuev1.LeaseRef
	for id, t := range w.tasks {
		if !t.lost {
			refs = append(refs, w.ref(id))
		}
	}
	for _, s := range w.unsure() {
		refs = append(refs, w.ref(leaseID{s.GetKey(), s.GetToken()}))
	}
	return refs
}

func (w *Worker) ref(id leaseID) *queuev1.LeaseRef {
	return &queuev1.LeaseRef{Queue: w.cfg.Queue, Key: id.key, Token: id.token}
}

func (w *Worker) unlinked() {
	w.mu.Lock()
	w.link = nil
	w.unstick()
	w.mu.Unlock()
	if w.cfg.OnConnected != nil {
		w.cfg.OnConnected(false, "")
	}
}

// dropPoison drops the settlements that a refusal must be about: their leases
// expire and the keys run again. It reports whether there were any.
func (w *Worker) dropPoison(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.unsettled) == 0 {
		return false
	}
	w.cfg.Log.Error("settlements refused", slog.String("queue", w.cfg.Queue), slog.Int("count", len(w.unsettled)), slog.Any("error", err))
	w.unsettled = nil
	w.checkIdle()
	return true
}

// serve sends until the stream ends.
func (w *Worker) serve(ctx context.Context, l *link) error {
	w.mu.Lock()
	every := w.lease / 3
	w.mu.Unlock()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := w.flush(l); err != nil {
			return w.readError(l, err)
		}
		select {
		case <-ctx.Done():
			_ = l.s.CloseSend()
			return ctx.Err()
		case err := <-l.read:
			w.orphan()
			return err
		case <-l.leave:
			return w.part(l)
		case <-tick.C:
			w.ping(l)
			w.extend(l)
		case <-w.wake:
		}
	}
}

// part waits for the answers of a server that goes away, so that the next one,
// which knows nothing of them, is not asked to settle the same again.
func (w *Worker) part(l *link) error {
	timer := time.NewTimer(lastAnswers)
	defer timer.Stop()
	for {
		w.mu.Lock()
		l.left = len(w.unsettled) == 0
		w.mu.Unlock()
		if l.left {
			return errReconnect
		}
		select {
		case <-l.settled:
		case err := <-l.read:
			w.orphan()
			return err
		case <-timer.C:
			w.mu.Lock()
			l.left = true
			w.mu.Unlock()
			return errReconnect
		}
	}
}

// readError is why the stream ended: a failed Send itself does not know.
func (w *Worker) readError(l *link, err error) error {
	l.cancel()
	if read := <-l.read; errors.Is(err, io.EOF) {
		err = read
	}
	w.orphan()
	return err
}

const (
	// eagerSettles is how many batches may be unanswered before small ones wait
	// for company.
	eagerSettles = 3
	// largeSettle is what a batch must hold to be sent beside so many others.
	largeSettle = 64
)

// flush sends what waits: settlements in batches, credit for free slots, and
// the goodbye. The credit of a settled lease comes back by itself; the rest is
// counted here, because only this side knows what is free after a reconnect or
// a loss. In doubt it counts what the server may still assign too low: then the
// next settlements keep theirs.
func (w *Worker) flush(l *link) error {
	for {
		var credit, goodbye, again *queuev1.WorkRequest
		var batch *queuev1.SettleBatch
		w.mu.Lock()
		if b := w.retryBatch(time.Now()); b != nil {
			again = &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b}}
		}
		w.asleep = false
		if l.unsure {
			l.unsure = false
			w.mu.Unlock()
			w.extend(l)
			w.mu.Lock()
		}
		n := min(len(w.outbox), maxBatch)
		if len(w.unsettled) >= maxUnanswered || len(w.unsettled) >= eagerSettles && n < largeSettle {
			n = 0 // what waits makes a larger batch
		}
		free := w.room() - len(w.tasks) - l.credit - len(w.outbox)
		if free > 0 && !w.draining {
			l.credit += free
			credit = &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: int32(free)}}}
		}
		if n > 0 {
			w.lastID++
			batch = &queuev1.SettleBatch{RequestId: w.lastID, Settlements: slices.Clone(w.outbox[:n]), HoldCredit: free < 0 || w.draining}
			if !batch.HoldCredit {
				l.credit += n
			}
			w.outbox = slices.Delete(w.outbox, 0, n)
			w.unsettled = append(w.unsettled, batch)
		}
		if w.draining && !l.goodbye {
			l.goodbye = true
			goodbye = &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}}
		}
		if credit == nil && batch == nil && goodbye == nil && again == nil {
			w.asleep = true
			w.mu.Unlock()
			return nil
		}
		w.mu.Unlock()
		var settle *queuev1.WorkRequest
		if batch != nil {
			settle = &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: batch}}
		}
		for _, req := range []*queuev1.WorkRequest{settle, again, credit, goodbye} {
			if req == nil {
				continue
			}
			if err := l.s.Send(req); err != nil {
				return err
			}
		}
	}
}

// extend asks for more time for the leases in hand, less those whose reconcile
// ran out of time.
func (w *Worker) extend(l *link) {
	now := time.Now()
	batch := &queuev1.ExtendBatch{}
	w.mu.Lock()
	all := now.After(w.nameUntil)
	for _, t := range w.tasks {
		all = all && !w.overdue(t, now)
	}
	for id, t := range w.tasks {
		if !all && !t.lost && !w.overdue(t, now) {
			batch.Leases = append(batch.Leases, w.ref(id))
		}
	}
	nothing := len(w.tasks) == 0 || !all && len(batch.GetLeases()) == 0
	if !nothing {
		l.extends = append(l.extends, now)
	}
	w.mu.Unlock()
	if !nothing {
		_ = l.s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: batch}}) // receive knows why it failed
	}
}

// receive reads until the stream ends. What a stream says that another has taken
// over from does not count any more.
func (w *Worker) receive(l *link) {
	for {
		resp, err := l.s.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			l.read <- err
			w.outlived(l)
			return
		}
		switch k := resp.GetKind().(type) {
		case *queuev1.WorkResponse_Assign:
			w.assign(l, k.Assign)
		case *queuev1.WorkResponse_Settled:
			w.settled(l, k.Settled)
		case *queuev1.WorkResponse_Extended:
			w.extended(l, k.Extended)
		case *queuev1.WorkResponse_Control:
			w.control(l, k.Control)
		case *queuev1.WorkResponse_Pong:
			w.pong(l, k.Pong)
		}
	}
}

// outlived is called when a stream ends: until another has taken over from it,
// the leases in hand end with it.
func (w *Worker) outlived(l *link) {
	w.mu.Lock()
	alone := l.left && w.link == nil
	w.mu.Unlock()
	if alone {
		w.orphan()
	}
}

func (w *Worker) extended(l *link, e *queuev1.Extended) {
	w.lose(e.GetLost())
	w.mu.Lock()
	if len(l.extends) == 0 || l.left {
		w.mu.Unlock()
		return
	}
	sent := l.extends[0]
	l.extends = l.extends[1:]
	// The server's clock when it extended was that of our asking, or later.
	ends := sent.Add(e.GetRemaining().AsDuration())
	if us := e.GetEndsUs(); us != 0 && !l.anchor.sent.IsZero() {
		ends = l.anchor.at(us)
	}
	w.mu.Unlock()
	if e.GetExtended() > 0 {
		w.deadline(sent, ends, e.GetUnreachable())
	}
}

func (w *Worker) control(l *link, c *queuev1.Control) {
	switch c.GetAction() {
	case queuev1.Action_ACTION_RECONNECT:
		shut(l.leave)
	case queuev1.Action_ACTION_SHUT_DOWN:
		w.shutOnce.Do(func() { close(w.shut) })
	case queuev1.Action_ACTION_CANCEL:
		w.lose(c.GetLeases())
	case queuev1.Action_ACTION_PAUSE: // the credit stays; keys come again when it is over
		w.cfg.Log.Info("queue was paused", slog.String("queue", w.cfg.Queue))
	}
}
