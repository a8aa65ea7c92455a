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

// produceLink is one Produce stream. Its sender is the goroutine that opened it;
// a second one reads.
type produceLink struct {
	s      queuev1.QueueService_ProduceClient
	cancel context.CancelFunc
	read   chan error    // how reading ended
	leave  chan struct{} // closed when the server asks for another stream
}

// defaultWindow is for a server that names none.
const defaultWindow = 8

// Run sends until ctx ends, and may be called once. It then waits for the
// answers to what was called for before, at most for the grace period; later
// calls and those without an answer fail with [ErrStopped].
func (p *Producer) Run(ctx context.Context) error {
	linked, unlink := context.WithCancel(context.WithoutCancel(ctx))
	defer unlink()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.stayLinked(linked)
	}()
	<-ctx.Done()
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Grace)
	defer cancel()
	_ = p.Flush(grace)
	unlink()
	<-ended
	p.drop(p.because(ErrStopped))
	return nil
}

// drop fails everything that waits.
func (p *Producer) drop(err error) {
	p.mu.Lock()
	err = p.wrap(err)
	if p.filling != nil {
		p.seal()
	}
	all := slices.Concat(p.flight, p.sealed)
	p.flight, p.sealed = nil, nil
	p.fail(all, err)
	p.unlockAndWake()
}

// stayLinked keeps a stream open until ctx ends.
func (p *Producer) stayLinked(ctx context.Context) {
	wait := newWait()
	var said warning
	for ctx.Err() == nil {
		err := p.link(ctx, func() { wait.Reset(); said.over() })
		if errors.Is(err, errReconnect) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		said.log(p.cfg.Log, "produce stream broke", err, slog.String("queue", p.cfg.Queue))
		if !wait.Sleep(ctx, rpc.RetryDelay(err)) {
			return
		}
	}
}

// link opens a stream and serves it until it ends.
func (p *Producer) link(ctx context.Context, opened func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &produceLink{cancel: cancel, read: make(chan error, 1), leave: make(chan struct{})}
	welcome, err := p.hello(ctx, l)
	if err != nil {
		p.note(err)
		if refused(err) {
			p.refuse(err)
		}
		return err
	}
	opened()
	p.mu.Lock()
	p.window = defaultWindow
	if n := int(welcome.GetWindow()); n > 0 {
		p.window = n
	}
	p.generation, p.refused, p.fault, p.hold = welcome.GetGeneration(), nil, nil, time.Time{}
	p.sealed = append(p.flight, p.sealed...) // sent again under their numbers
	p.flight = nil
	p.mu.Unlock()
	if p.cfg.OnConnected != nil {
		p.cfg.OnConnected(true, welcome.GetGeneration())
		defer p.cfg.OnConnected(false, "")
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.receive(l)
	}()
	err = p.serve(ctx, l)
	cancel()
	<-read
	p.note(err)
	if refused(err) {
		p.mu.Lock()
		poison := p.flight // the refusal must be about one of these
		p.flight = nil
		p.fail(poison, p.wrap(err))
		p.unlockAndWake()
	}
	return err
}

func (p *Producer) hello(ctx context.Context, l *produceLink) (*queuev1.ProduceWelcome, error) {
	s, resp, err := handshake(ctx, l.cancel, p.c.Produce, func() *queuev1.ProduceRequest {
		return &queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: p.cfg.Session, Client: p.cfg.Name}}}
	})
	if err != nil {
		return nil, err
	}
	if resp.GetWelcome() == nil {
		return nil, fmt.Errorf("client: queue service began with %T, not a welcome", resp.GetKind())
	}
	l.s = s
	return resp.GetWelcome(), nil
}

// refused reports that trying again with the same words is useless.
func refused(err error) bool {
	switch rpc.Code(err) {
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
		return true
	}
	return permanent(err)
}

// refuse fails what waits, and what comes until a stream is open.
func (p *Producer) refuse(err error) {
	p.mu.Lock()
	p.refused = p.wrap(err)
	p.mu.Unlock()
	p.drop(err)
}

func (p *Producer) note(err error) {
	if errors.Is(err, errReconnect) {
		return
	}
	p.mu.Lock()
	p.fault = err
	p.mu.Unlock()
}

// lastAnswers is how long a stream that is left may take to answer what it was sent.
const lastAnswers = 2 * time.Second

// serve sends until the stream ends.
func (p *Producer) serve(ctx context.Context, l *produceLink) error {
	var due *time.Timer // of a retry
	for {
		if err := p.sendAll(l); err != nil {
			l.cancel()
			if read := <-l.read; errors.Is(err, io.EOF) {
				err = read
			}
			return err
		}
		var again <-chan time.Time
		if wait := p.held(); wait > 0 {
			due = time.NewTimer(wait)
			again = due.C
		}
		select {
		case <-ctx.Done():
			_ = l.s.CloseSend()
			return ctx.Err()
		case err := <-l.read:
			return err
		case <-l.leave:
			// What this server has it also answers; the rest is sent on the next stream.
			_ = l.s.CloseSend()
			select {
			case <-l.read: //nolint:errcheck // it says that the reader has ended
			case <-time.After(lastAnswers):
			}
			return errReconnect
		case <-p.wake:
		case <-again:
			p.mu.Lock()
			p.hold = time.Time{}
			p.mu.Unlock()
		}
		if due != nil {
			due.Stop()
			due = nil
		}
	}
}

// held is how long nothing may be sent.
func (p *Producer) held() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold.IsZero() {
		return 0
	}
	return max(time.Until(p.hold), time.Millisecond)
}

// sendAll sends what may be sent.
func (p *Producer) sendAll(l *produceLink) error {
	for {
		p.mu.Lock()
		b := p.take()
		if b == nil {
			p.asleep = true
			p.unlockAndWake()
			return nil
		}
		p.asleep = false
		p.unlockAndWake()
		m := &queuev1.ProduceBatch{RequestId: b.id, Queue: p.cfg.Queue, Ops: b.ops}
		if err := l.s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: m}}); err != nil {
			return err
		}
	}
}

// receive reads until the stream ends.
func (p *Producer) receive(l *produceLink) {
	left := false
	for {
		resp, err := l.s.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			l.read <- err
			return
		}
		switch k := resp.GetKind().(type) {
		case *queuev1.ProduceResponse_Produced:
			p.answered(k.Produced)
		case *queuev1.ProduceResponse_Control:
			// A session that was shut down says so with every add.
			if k.Control.GetAction() == queuev1.Action_ACTION_RECONNECT && !left {
				left = true
				close(l.leave)
			}
		}
	}
}
