package client

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const (
	// defaultWait is how long servers wait for what a read asks for when the read does not say.
	defaultWait = 3 * time.Second
	// maxDelay bounds how long a read waits for one replica before it asks another.
	maxDelay = 250 * time.Millisecond
	// mostElsewhere is of how many further replicas one read is asked.
	mostElsewhere = 3
)

// elsewhere sends a read that waits too long on one replica also to another one, so
// that a frozen replica does not hold up the reads that it gets. The first call is
// what it would be alone, and is the only one where no other replica is connected.
type elsewhere struct{ grpc.ClientConnInterface }

// Invoke implements grpc.ClientConnInterface.
func (e elsewhere) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	out, ok := reply.(proto.Message)
	wait := waitOf(args)
	if !ok || wait == 0 {
		return e.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	if at, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(at))
	}
	at := rpc.PlaceOf(ctx)
	if at == nil {
		at = &rpc.Place{}
		ctx = at.Call(ctx)
	}
	r := waitingRead{conn: e.ClientConnInterface, method: method, args: args, opts: opts, delay: min(max(wait, 0)/4, maxDelay)}
	return r.ask(ctx, out, []*rpc.Place{at})
}

// waitingRead is one read that may have to wait for a state.
type waitingRead struct {
	conn   grpc.ClientConnInterface
	method string
	args   any
	opts   []grpc.CallOption
	delay  time.Duration
}

// ask calls the last of the places, whose call ctx is, and after a while another
// server. What that answers sooner is the answer, and its server the place.
func (r *waitingRead) ask(ctx context.Context, reply proto.Message, at []*rpc.Place) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	here, there := at[len(at)-1], &rpc.Place{}
	other := reply.ProtoReflect().New().Interface()
	answered := make(chan bool, 1)
	timer := time.AfterFunc(r.delay, func() {
		next, ok := there.Elsewhere(own, at...)
		ok = ok && len(at) <= mostElsewhere && r.ask(next, other, append(slices.Clip(at), there)) == nil
		answered <- ok
		if ok {
			cancel()
		}
	})
	err := r.conn.Invoke(own, r.method, r.args, reply, r.opts...)
	if timer.Stop() {
		return err
	}
	cancel() // what was not answered by now
	if ok := <-answered; ok && err != nil {
		proto.Reset(reply)
		proto.Merge(reply, other)
		here.Move(there)
		return nil
	}
	return err
}

// waitOf is how long a request waits for a state that may not be there yet; zero when
// it does not, or is bound to one replica.
func waitOf(args any) time.Duration {
	var timeout *durationpb.Duration
	switch req := args.(type) {
	case *indexv1.WaitForRevisionRequest:
		timeout = req.GetTimeout()
	case interface{ GetConsistency() *indexv1.Consistency }:
		if p, ok := req.(interface{ GetPageToken() string }); ok && p.GetPageToken() != "" {
			return 0
		}
		c := req.GetConsistency()
		if c.GetAtLeast() == nil && !c.GetExact() {
			return 0
		}
		timeout = c.GetTimeout()
	default:
		return 0
	}
	return cmp.Or(timeout.AsDuration(), defaultWait)
}
