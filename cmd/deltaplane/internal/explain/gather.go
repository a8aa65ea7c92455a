package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// parts are the services that are asked.
type parts struct{ cli.DialFlags }

func (p *parts) register(cmd *cobra.Command) {
	p.Register(cmd.Flags())
	p.Timeout = partTimeout
	cmd.Flags().Lookup("timeout").DefValue = partTimeout.String()
}

// said is what the index and the reflector answered.
type said struct {
	collections *indexv1.ListCollectionsResponse
	reflections *reflectorv1.ListReflectionsResponse
}

// asked are questions that are under way at the same time.
type asked struct {
	p    *parts
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error       // of settings: nobody could be asked; guarded by mu
	out  []why.Silence // guarded by mu
}

// ask calls a part in the background, and notes when it does not answer. What refuses says that an
// error is an answer.
func (a *asked) ask(ctx context.Context, part, address string, call func(context.Context, *grpc.ClientConn) error) {
	a.wg.Go(func() {
		config := a.p.Config
		config.Extra = slices.Concat(config.Extra, []grpc.DialOption{grpc.WithDisableRetry()}) // what refuses at once did not answer
		c, err := cli.Connect(address, config)
		if err != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.errs = append(a.errs, err)
			return
		}
		defer c.Close()
		if err = call(ctx, c); err == nil {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.out = append(a.out, why.Silence{Part: part, Why: fmt.Sprintf("%s: %s", address, a.p.reason(err))})
	})
}

// reason is what a person should read of why a part did not answer.
func (p *parts) reason(err error) string {
	if rpc.Code(err) == codes.DeadlineExceeded {
		return fmt.Sprintf("no answer within %v", p.Timeout)
	}
	text, _, _ := strings.Cut(cli.Message(err), "\n")
	return text
}

// gather asks every part about a key of a queue.
func (p *parts) gather(ctx context.Context, queue, key string) (*why.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	f := &why.Facts{Queue: queue, Key: key}
	a := &asked{p: p}
	var s said
	var refused error
	a.ask(ctx, why.PartQueue, p.Queue, func(ctx context.Context, c *grpc.ClientConn) error {
		answer, err := queuev1.NewQueueAdminServiceClient(c).Inspect(ctx, &queuev1.InspectRequest{Queue: queue, Key: key, Surroundings: true})
		switch code := rpc.Code(err); {
		case err == nil:
			fromQueue(f, answer)
		case rpc.Reason(err) == "QUEUE_NOT_FOUND":
			_, f.There, _ = strings.Cut(cli.Message(err), "; ")
			f.There = strings.TrimSuffix(f.There, " (QUEUE_NOT_FOUND)")
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
	return f, cmp.Or(refused, first(a.errs))
}

// mirror asks index and reflector how current they are.
func (a *asked) mirror(ctx context.Context, s *said) {
	a.ask(ctx, why.PartIndex, a.p.Index, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		s.collections, err = indexv1.NewIndexServiceClient(c).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		return err
	})
	a.ask(ctx, why.PartReflector, a.p.Reflector, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		s.reflections, err = reflectorv1.NewReflectorServiceClient(c).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
		return err
	})
}

func first(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}
