package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/test/chaos/history"
)

const hotKeys = 40

// chaosProducer adds keys: hot ones that are added again and again, and ones
// that are added once, some of them delayed or rate-limited.
type chaosProducer struct {
	*notes
	role role

	mu   sync.Mutex // guards what follows
	rng  *rand.Rand
	op   int64
	next int
}

func (r role) produce(ctx context.Context) error {
	n, err := openNotes(r.Log, r.Name)
	if err != nil {
		return err
	}
	p := &chaosProducer{notes: n, role: r, rng: rand.New(rand.NewPCG(r.Seed, 8))}
	var group sync.WaitGroup
	group.Go(func() { p.calls(ctx) })
	group.Go(func() { p.streams(ctx) })
	group.Wait()
	return p.Close()
}

// add is an add that has been written down and is to be sent.
type add struct {
	id   int64
	op   *queuev1.ProduceOp
	sent int // how often
}

// some makes up adds of one kind and writes down that they are invoked.
func (p *chaosProducer) some() []*add {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*add, 1+p.rng.IntN(6))
	kind, delay := queuev1.ProduceKind_PRODUCE_KIND_ADD, time.Duration(0)
	prefix := "hot"
	switch i := p.rng.IntN(100); {
	case i < 45:
	case i < 75:
		prefix = "once"
	case i < 92:
		prefix, kind, delay = "late", queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, time.Duration(p.rng.Int64N(int64(3*time.Second)))+time.Millisecond
	default:
		prefix, kind = "limited", queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED
	}
	for i := range out {
		p.op++
		p.next++
		key := fmt.Sprintf("%s/%s-%d", prefix, p.role.Name, p.next)
		if prefix == "hot" {
			key = fmt.Sprintf("hot/%d", p.rng.IntN(hotKeys))
		}
		out[i] = &add{id: p.op, op: &queuev1.ProduceOp{Key: key, Kind: kind, Priority: int32(p.rng.IntN(8)) - 4}}
		if delay > 0 {
			out[i].op.Delay = durationpb.New(delay)
		}
		e := history.Event{Kind: history.Invoke, Op: history.Add, ID: p.op, Key: key, Delay: int64(delay)}
		if kind == queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED {
			e.Within = int64(limiterMax)
		}
		p.note(e)
	}
	return out
}

func (p *chaosProducer) ended(a *add, kind history.Kind, status string) {
	p.note(history.Event{Kind: kind, Op: history.Add, ID: a.id, Key: a.op.GetKey(), Status: status})
}

func (p *chaosProducer) pause(ctx context.Context, most time.Duration) {
	p.mu.Lock()
	d := time.Duration(p.rng.Int64N(int64(most)))
	p.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// calls adds by unary calls, to one server or another, each tried once.
func (p *chaosProducer) calls(ctx context.Context) {
	var clients []queuev1.QueueServiceClient
	for _, addr := range p.role.Servers {
		// A call that the library tried again could be refused the second time and done the first.
		conn, err := rpc.Dial(addr, rpc.DialConfig{Extra: []grpc.DialOption{grpc.WithDisableRetry()}})
		if err != nil {
			panic(err) // the address is the test's own
		}
		defer conn.Close()
		clients = append(clients, queuev1.NewQueueServiceClient(conn))
	}
	for i := 0; ctx.Err() == nil; i++ {
		adds := p.some()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 7*time.Second)
		results, err := call(limited, clients[i%len(clients)], adds)
		cancel()
		for k, a := range adds {
			switch {
			case err == nil:
				p.ended(a, history.OK, results[k].GetStatus().String())
			case surelyNot(err):
				p.ended(a, history.Fail, err.Error())
			default:
				p.ended(a, history.Unknown, err.Error())
			}
		}
		if err != nil {
			p.pause(ctx, 100*time.Millisecond)
		}
		p.pause(ctx, 20*time.Millisecond)
	}
}

// surelyNot says whether an error promises that nothing was done: the service
// itself must have given it.
func surelyNot(err error) bool {
	return rpc.Reason(err) != "" && rpc.Code(err) != codes.Unknown
}

func call(ctx context.Context, c queuev1.QueueServiceClient, adds []*add) ([]*queuev1.AddResult, error) {
	items := make([]*queuev1.AddItem, len(adds))
	for i, a := range adds {
		items[i] = &queuev1.AddItem{Key: a.op.GetKey(), Priority: a.op.GetPriority()}
	}
	switch adds[0].op.GetKind() {
	case queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER:
		got, err := c.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queueName, Items: items, Delay: adds[0].op.GetDelay()})
		return got.GetResults(), err
	case queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED:
		got, err := c.AddRateLimited(ctx, &queuev1.AddRateLimitedRequest{Queue: queueName, Items: items})
		return got.GetResults(), err
	default:
		got, err := c.Add(ctx, &queuev1.AddRequest{Queue: queueName, Items: items})
		return got.GetResults(), err
	}
}

// pending is a batch that was not answered.
type pending struct {
	m    *queuev1.ProduceBatch
	adds []*add
}

// streams adds by Produce streams; what was not answered is sent again on the next one.
func (p *chaosProducer) streams(ctx context.Context) {
	var unanswered []*pending
	request := uint64(time.Now().UnixMicro()) // above those of a process before, which had the same session
	for at := 0; ctx.Err() == nil || len(unanswered) > 0 && at < 100; at++ {
		linked, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second) // one that hangs is left, too
		unanswered = p.stream(linked, ctx, p.role.Servers[at%len(p.role.Servers)], unanswered, &request)
		cancel()
		p.pause(linked, 50*time.Millisecond)
	}
	for _, b := range unanswered {
		for _, a := range b.adds {
			p.ended(a, history.Unknown, "never answered")
		}
	}
}

// stream sends batches until the stream breaks or work ends, and returns those without an answer.
func (p *chaosProducer) stream(ctx, work context.Context, addr string, unanswered []*pending, request *uint64) []*pending {
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		return unanswered
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := queuev1.NewQueueServiceClient(conn).Produce(ctx)
	if err != nil {
		return unanswered
	}
	if s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: p.role.Name}}}) != nil {
		return unanswered
	}
	if first, err := s.Recv(); err != nil || first.GetWelcome() == nil {
		return unanswered
	}
	send := func(b *pending) error {
		for _, a := range b.adds {
			a.sent++
		}
		return s.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: b.m}})
	}
	for _, b := range unanswered {
		if send(b) != nil {
			return unanswered
		}
	}
	const window = 4
	for ctx.Err() == nil {
		for len(unanswered) < window && work.Err() == nil {
			b := &pending{adds: p.some()}
			*request++
			b.m = &queuev1.ProduceBatch{RequestId: *request, Queue: queueName}
			for _, a := range b.adds {
				b.m.Ops = append(b.m.Ops, a.op)
			}
			unanswered = append(unanswered, b)
			if send(b) != nil {
				return unanswered
			}
			p.pause(ctx, 10*time.Millisecond)
		}
		if len(unanswered) == 0 {
			return nil
		}
		m, err := s.Recv()
		if err != nil {
			return unanswered
		}
		if got := m.GetProduced(); got != nil {
			if got.GetRequestId() != unanswered[0].m.GetRequestId() {
				panic(errors.New("answers came out of order")) // the contract promises the order
			}
			p.produced(unanswered[0], got)
			unanswered = unanswered[1:]
		}
		if m.GetControl() != nil {
			return unanswered
		}
	}
	return unanswered
}

func (p *chaosProducer) produced(b *pending, got *queuev1.Produced) {
	refused := map[int32]*queuev1.ProduceError{}
	for _, d := range got.GetDetails() {
		if d.GetError() != nil {
			refused[d.GetIndex()] = d.GetError()
		}
	}
	for i, a := range b.adds {
		e := got.GetError()
		if e == nil {
			e = refused[int32(i)]
		}
		switch {
		case e == nil:
			p.note(history.Event{Kind: history.OK, Op: history.Add, ID: a.id, Key: a.op.GetKey(), Status: got.GetStatuses()[i].String(), Sent: a.sent})
		case e.GetCode() == int32(codes.Unknown) || a.sent > 1: // the first time it may have been done
			p.ended(a, history.Unknown, e.GetReason())
		default:
			p.ended(a, history.Fail, e.GetReason())
		}
	}
}
