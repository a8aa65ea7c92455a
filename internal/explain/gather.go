package explain

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// Timeout is how long the parts should be given: all are asked at once, and an answer is to be
// there within 300 ms.
const Timeout = 250 * time.Millisecond

// Part is a service that is asked. Its connection should not retry: what refuses at once did not
// answer.
type Part struct {
	// Address is shown where it does not answer.
	Address string
	Conn    grpc.ClientConnInterface
}

// Parts are the services that are asked. They are safe for concurrent use.
type Parts struct {
	Queue, Index, Reflector Part
	// Timeout is how long they may take.
	Timeout time.Duration
	// Message is what a person should read of an error; [rpc.Message] where it is nil.
	Message func(error) string
}

// said is what the index and the reflector answered.
type said struct {
	collections *indexv1.ListCollectionsResponse
	reflections *reflectorv1.ListReflectionsResponse
}

// asked are questions that are under way at the same time.
type asked struct {
	p   *Parts
	wg  sync.WaitGroup
	mu  sync.Mutex
	out []why.Silence // guarded by mu
}

// ask calls a part in the background, and notes when it does not answer.
func (a *asked) ask(ctx context.Context, name string, part Part, call func(context.Context, grpc.ClientConnInterface) error) {
	a.wg.Go(func() {
		err := call(ctx, part.Conn)
		if err == nil {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.out = append(a.out, why.Silence{Part: name, Why: fmt.Sprintf("%s: %s", part.Address, a.p.reason(err))})
	})
}

func (p *Parts) message(err error) string {
	if p.Message != nil {
		return p.Message(err)
	}
	return rpc.Message(err)
}

// reason is what a person should read of why a part did not answer.
func (p *Parts) reason(err error) string {
	if rpc.Code(err) == codes.DeadlineExceeded {
		return fmt.Sprintf("no answer within %v", p.Timeout)
	}
	text, _, _ := strings.Cut(p.message(err), "\n")
	return text
}

// Key asks every part about a key of a queue. An error is the queue's that it may not or cannot say
// anything of such a key.
func (p *Parts) Key(ctx context.Context, queue, key string) (*why.Facts, error) {
	f, _, err := p.Inspect(ctx, queue, key)
	return f, err
}

// Inspect is Key with what the queue said; nil where it did not answer.
func (p *Parts) Inspect(ctx context.Context, queue, key string) (*why.Facts, *queuev1.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	f := &why.Facts{Queue: queue, Key: key}
	a := &asked{p: p}
	var s said
	var inspected *queuev1.InspectResponse
	var refused error
	a.ask(ctx, why.PartQueue, p.Queue, func(ctx context.Context, c grpc.ClientConnInterface) error {
		answer, err := queuev1.NewQueueAdminServiceClient(c).Inspect(ctx, &queuev1.InspectRequest{Queue: queue, Key: key, Surroundings: true})
		switch code := rpc.Code(err); {
		case err == nil:
			inspected = answer
			fromQueue(f, answer)
		case rpc.Reason(err) == "QUEUE_NOT_FOUND":
			_, f.There, _ = strings.Cut(rpc.Message(err), "; ")
			f.NoQueue = true
		case code == codes.InvalidArgument || code == codes.PermissionDenied || code == codes.Unauthenticated:
			refused = err
		default:
			return err
		}
		return nil
	})
	a.mirror(ctx, &s)
	a.wg.Wait()
	if s.collections != nil {
		p.written(ctx, f)
	}
	f.Now = time.Now()
	s.into(f)
	f.Silent = a.out
	return f, inspected, refused
}

// mirror asks index and reflector how current they are.
func (a *asked) mirror(ctx context.Context, s *said) {
	a.ask(ctx, why.PartIndex, a.p.Index, func(ctx context.Context, c grpc.ClientConnInterface) (err error) {
		s.collections, err = indexv1.NewIndexServiceClient(c).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		return err
	})
	a.ask(ctx, why.PartReflector, a.p.Reflector, func(ctx context.Context, c grpc.ClientConnInterface) (err error) {
		s.reflections, err = reflectorv1.NewReflectorServiceClient(c).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
		return err
	})
}
