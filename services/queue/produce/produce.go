package produce

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

const (
	// produceBytes is about how many bytes of batches may be under way; one batch may
	// always be.
	produceBytes = 8 << 20
	// keptBatches is how many a stream keeps to be used again.
	keptBatches = 4
)

// producer is one Produce stream: one goroutine receives, one sends.
type producer struct {
	s    *Server
	ss   *session.Session
	grpc queuev1.QueueService_ProduceServer
	name uint64 // hash of the session, for Once

	known wire.Collections // of the receiver

	mu         sync.Mutex
	out        []*produceBatch            // under way, in order; guarded by mu, as is all that follows
	free       []*produceBatch            // to be used again
	bytes      int                        // of out
	controls   []*queuev1.ProduceResponse // to be sent first
	ended      bool                       // nothing more comes
	generation string                     // the last one told
	signal     chan struct{}              // of the sender
	room       chan struct{}              // of the receiver
}

// Produce adds keys in batches.
func (s *Server) Produce(grpc queuev1.QueueService_ProduceServer) error {
	var first produceMessage
	if err := grpc.RecvMsg(&first); err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return wire.ErrNotHello
	}
	c := &wire.Checks{}
	c.Session("hello.session_id", hello.GetSessionId(), true)
	c.Session("hello.client", hello.GetClient(), false)
	if err := c.Err(); err != nil {
		return err
	}
	ss, err := s.Sessions.Get(wire.SessionID(grpc.Context(), hello.GetSessionId()))
	if err != nil {
		return err
	}
	p := &producer{
		s: s, ss: ss, grpc: grpc, name: onceOf(ss.ID), generation: s.Queues.Engine.Generation(), known: wire.Collections{},
		signal: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	welcome := &queuev1.ProduceWelcome{ServerTime: timestamppb.Now(), Generation: p.generation, Window: session.ProduceWindow}
	if err := grpc.Send(&queuev1.ProduceResponse{Kind: &queuev1.ProduceResponse_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	defer s.Metrics.OpenStream("produce")()
	shut := ss.AddProducer(p)
	defer ss.RemoveProducer(p)
	if shut {
		p.ShutDown()
	}
	ctx, cancel := context.WithCancel(grpc.Context())
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- p.send(ctx) }()
	received := make(chan error, 1)
	go func() { received <- p.receive(ctx) }() // ends with the RPC at the latest
	return p.wait(ctx, cancel, sent, received)
}

// wait keeps the stream until the producer ends it, or the server.
func (p *producer) wait(ctx context.Context, cancel func(), sent, received chan error) error {
	move := wire.NewAgingTimer(ctx, p.s.Aging)
	defer move.Stop()
	var over <-chan time.Time
	stopped := false
	stopping := p.s.Stopping
	for {
		select {
		case err := <-received:
			if !errors.Is(err, io.EOF) {
				cancel()
				select {
				case <-sent: //nolint:errcheck // the stream ends with err
				case <-time.After(time.Second): // it is stuck in Send, which ends with this call
				}
				return err
			}
			p.end()
			received = nil
		case err := <-sent: // everything is answered, or nobody is there
			return err
		case <-move.C():
			move.Again()
			p.control(queuev1.Action_ACTION_RECONNECT, "the connection is old")
		case <-stopping:
			stopping = nil
			p.control(queuev1.Action_ACTION_RECONNECT, "the server is stopping")
			timer := time.NewTimer(p.s.StopGrace)
			defer timer.Stop()
			over = timer.C
		case <-over:
			if stopped {
				return nil // it does not read
			}
			stopped, over = true, time.After(time.Second)
			p.end()
		}
	}
}

// end has the sender return when all that was received is answered.
func (p *producer) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.Wake()
}

func (p *producer) Wake() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// ShutDown tells the producer that its session was shut down.
func (p *producer) ShutDown() {
	p.control(queuev1.Action_ACTION_SHUT_DOWN, "the session was shut down")
}

// control queues a control message.
func (p *producer) control(a queuev1.Action, reason string) {
	p.mu.Lock()
	p.controls = append(p.controls, &queuev1.ProduceResponse{Kind: &queuev1.ProduceResponse_Control{
		Control: &queuev1.Control{Action: a, Reason: reason},
	}})
	p.mu.Unlock()
	p.Wake()
}

// receive takes batches until the producer's side ends or fails.
func (p *producer) receive(ctx context.Context) error {
	queues := map[string]*transaction.Queue{}
	defer releaseAll(queues)
	var m produceMessage
	for {
		b := p.next(ctx)
		if b == nil {
			return ctx.Err()
		}
		m.batch = b
		if err := p.grpc.RecvMsg(&m); err != nil {
			return err
		}
		if m.batch == nil { // it was something else
			return wire.ErrNotHello
		}
		p.mu.Lock()
		if p.ended { // the server stops: what comes now is not done, and not answered
			p.mu.Unlock()
			return wire.ErrStopping
		}
		p.out = append(p.out, b)
		p.bytes += b.bytes
		p.mu.Unlock()
		p.begin(ctx, queues, b)
	}
}

// next is a batch to read into, once there is room for one.
func (p *producer) next(ctx context.Context) *produceBatch {
	for {
		p.mu.Lock()
		if n := len(p.out); n == 0 || n < session.ProduceWindow && p.bytes < produceBytes {
			var b *produceBatch
			if n := len(p.free); n > 0 {
				b, p.free = p.free[n-1], p.free[:n-1]
			} else {
				b = &produceBatch{known: p.known}
				b.call.Done = func(c *transaction.Call) { p.finished(b) }
				b.call.ReadsReplies = true
			}
			p.mu.Unlock()
			return b
		}
		p.mu.Unlock()
		select {
		case <-p.room:
		case <-ctx.Done():
			return nil
		}
	}
}

// begin has the operations of a batch done.
func (p *producer) begin(ctx context.Context, queues map[string]*transaction.Queue, b *produceBatch) {
	if b.err == nil {
		b.err = p.s.Permit.Ask(ctx, wire.VerbAdd, b.queue)
	}
	if b.err == nil {
		l := queues[b.queue]
		if l == nil || l.Ended() != nil {
			if l, b.err = p.s.Queues.Use(ctx, b.queue); b.err == nil {
				if len(queues) > wire.MaxQueues {
					releaseAll(queues)
				}
				if was := queues[b.queue]; was != nil {
					was.Release()
				}
				queues[strings.Clone(b.queue)] = l
				p.s.Queues.Keep(l)
			}
		}
		if b.err == nil {
			b.err = p.ss.Produced(b.id, b.sum())
		}
		if b.err == nil && p.ss.ShutDown() {
			b.dropAdds()
		}
		if b.err == nil && len(b.call.Ops) > 0 {
			for i := range b.call.Ops {
				if op := &b.call.Ops[i]; op.Kind == workqueue.OpAdd && op.Limited {
					op.Once = onceFor(p.name, b.id, b.place(i))
				}
			}
			b.call.Session = p.ss.ID
			metrics.Count(l.Metrics.Retries, b.after)
			l.Submit(&b.call)
			return
		}
	}
	p.finished(b)
}

// releaseAll forgets queues that a stream kept.
func releaseAll(queues map[string]*transaction.Queue) {
	for _, l := range queues {
		l.Release()
	}
	clear(queues)
}
