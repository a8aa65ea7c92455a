package testing

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/attempt"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const (
	// lateBy, lostBy and againBy are how late keys are, how soon leases are lost, and when a
	// settled key is added again, each at most.
	lateBy  = 100 * time.Millisecond
	lostBy  = 20 * time.Millisecond
	againBy = 50 * time.Millisecond
	// ownTimeout bounds what is done on behalf of the adversary.
	ownTimeout = 10 * time.Second
)

// keys are the calls of the queue by the code under test. What is done to it is done by
// the queue itself: an operator takes leases away, and somebody adds keys.
type keys struct {
	adversary *adversary
	activity  *activity
	admin     queuev1.QueueAdminServiceClient
	queue     queuev1.QueueServiceClient
	base      context.Context //nolint:containedctx // of what is done later
	later     sync.WaitGroup
	tokens    sync.Map // of what a decision was made about: repetitions are no calls of their own
}

// wait waits for what is done later.
func (k *keys) wait() { k.later.Wait() }

// after does something up to a time later.
func (k *keys) after(d time.Duration, do func(ctx context.Context)) {
	done := k.activity.call()
	k.later.Go(func() {
		defer done()
		if attempt.Sleep(k.base, d) {
			ctx, cancel := context.WithTimeout(k.base, ownTimeout)
			defer cancel()
			do(ctx)
		}
	})
}

// part is a share of a time.
func part(most time.Duration, d decision) time.Duration { return time.Duration(d.size * float64(most)) }

// first reports whether a lease is met for the first time at a point of its life.
func (k *keys) first(point, queue, key string, token uint64) bool {
	old, ok := k.tokens.Swap(point+" "+queue+" "+key, token)
	return !ok || old != token
}

// leased may take a lease away again soon.
func (k *keys) leased(queue, key string, token uint64) {
	if isFeed(queue) || !k.first("lease", queue, key, token) {
		return
	}
	k.activity.moved()
	if d := k.adversary.decide("queue: lease of "+queue+" "+key, lostLease); d.kind == lostLease {
		k.after(part(lostBy, d), func(ctx context.Context) { k.release(ctx, queue, key) })
	}
}

// release has the queue take a lease away. A key that is not leased stays as it is.
func (k *keys) release(ctx context.Context, queue, key string) {
	_, _ = k.admin.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: queue, Keys: []string{key}})
}

// settling is called before settlements are sent. It may take their leases away, add their
// keys again, or have the stream break before they are sent.
func (k *keys) settling(ctx context.Context, all []*queuev1.Settlement) (tear bool) {
	for _, s := range all {
		queue, key := s.GetQueue(), s.GetKey()
		if isFeed(queue) || s.GetOutcome() == queuev1.Outcome_OUTCOME_RELEASE || !k.first("settlement", queue, key, s.GetToken()) {
			continue
		}
		k.activity.moved()
		kinds := []kind{killedWorker, brokenStream, duplicateKey}
		if done := s.GetOutcome(); done != queuev1.Outcome_OUTCOME_DONE && done != queuev1.Outcome_OUTCOME_FORGET {
			kinds = kinds[:2] // it runs again anyway, or never
		}
		switch d := k.adversary.decide("queue: settlement of "+queue+" "+key, kinds...); d.kind {
		case killedWorker:
			k.release(ctx, queue, key)
		case brokenStream:
			tear = true
		case duplicateKey:
			k.after(part(againBy, d), func(ctx context.Context) {
				k.activity.moved()
				_, _ = k.queue.Add(ctx, &queuev1.AddRequest{Queue: queue, Items: []*queuev1.AddItem{{Key: key}}})
			})
		}
	}
	return tear
}

// adding is called before keys are added. It may wait, and says whether the stream is to
// break behind them.
func (k *keys) adding(ctx context.Context, queue string, names []string) (tear bool) {
	if isFeed(queue) {
		return false
	}
	var late time.Duration
	for _, key := range names {
		k.activity.moved()
		switch d := k.adversary.decide("queue: add to "+queue+" "+key, lateKey, brokenStream); d.kind {
		case lateKey:
			late = max(late, part(lateBy, d))
		case brokenStream:
			tear = true
		}
	}
	if late > 0 {
		attempt.Sleep(ctx, late)
	}
	return tear
}

// waits are the calls that may take as long as nothing happens.
var waits = map[string]bool{
	queuev1.QueueService_Get_FullMethodName: true, queuev1.QueueService_ShutDownWithDrain_FullMethodName: true,
}

func (k *keys) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if !waits[method] {
		defer k.activity.call()()
	}
	tear := false
	switch req := req.(type) {
	case *queuev1.SettleRequest:
		tear = k.settling(ctx, req.GetSettlements())
	case interface {
		GetQueue() string
		GetItems() []*queuev1.AddItem
	}:
		names := make([]string, len(req.GetItems()))
		for i, item := range req.GetItems() {
			names[i] = item.GetKey()
		}
		tear = k.adding(ctx, req.GetQueue(), names)
	case *queuev1.GetRequest:
		k.activity.begin(&k.activity.queue)
	}
	err := invoke(ctx, method, req, reply, conn, opts...)
	if err != nil {
		return err
	}
	if tear {
		return errBroken
	}
	switch reply := reply.(type) {
	case *queuev1.GetResponse:
		for _, lease := range reply.GetLeases() {
			k.leased(lease.GetQueue(), lease.GetKey(), lease.GetToken())
		}
	case *queuev1.SaveStateResponse:
		if s, ok := req.(*queuev1.SaveStateRequest); ok && isFeed(s.GetQueue()) && reply.GetStatus() == queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			k.activity.saved(s.GetQueue(), s.GetState())
		}
	}
	return nil
}

func (k *keys) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	open := func(ctx context.Context) (grpc.ClientStream, error) {
		return streamer(ctx, desc, conn, method, opts...)
	}
	switch method {
	case queuev1.QueueService_Work_FullMethodName:
		s := &workStream{k: k}
		var err error
		s.breakable, err = newBreakable(ctx, open, s.ended)
		if err != nil {
			return nil, err
		}
		return s, nil
	case queuev1.QueueService_Produce_FullMethodName:
		b, err := newBreakable(ctx, open, nil)
		if err != nil {
			return nil, err
		}
		return &produceStream{b, k}, nil
	}
	return open(ctx)
}
