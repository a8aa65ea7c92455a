package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Pool is a few connections to one server, used in turn.
type Pool []*grpc.ClientConn

// Dial makes a pool of connections to one address.
func Dial(addr string, connections int) (Pool, error) { return DialAs(addr, connections, "") }

// DialAs is Dial for a caller with the bearer token of a file; an empty one is nobody's.
func DialAs(addr string, connections int, tokenFile string) (Pool, error) {
	p := make(Pool, connections)
	for i := range p {
		var err error
		if p[i], err = rpc.Dial(addr, rpc.DialConfig{TLS: ClientTLS(), TokenFile: tokenFile}); err != nil {
			return nil, errors.Join(err, p[:i].Close())
		}
	}
	return p, nil
}

// Close closes the connections.
func (p Pool) Close() error {
	var err error
	for _, c := range p {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Turns is what a closed loop did.
type Turns struct {
	Done    int64
	Elapsed time.Duration
	Latency *harness.Histogram
}

// Rate is how many were done in a second.
func (t Turns) Rate() float64 { return float64(t.Done) / t.Elapsed.Seconds() }

// ClosedLoop lets callers call again and again for d, one call in flight each,
// and waits for the last answers. The first error ends it.
func ClosedLoop(ctx context.Context, d time.Duration, callers int, call func(ctx context.Context, caller int) error) (Turns, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := Turns{Latency: &harness.Histogram{}}
	var done atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for i := range callers {
		group.Go(func() {
			var mine int64
			for at := time.Now(); at.Sub(began) < d && ctx.Err() == nil; {
				if err := call(ctx, i); err != nil {
					cancel(err)
					break
				}
				mine++
				now := time.Now()
				t.Latency.Record(now.Sub(at))
				at = now
			}
			done.Add(mine)
		})
	}
	group.Wait()
	t.Done, t.Elapsed = done.Load(), time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return t, err
	}
	return t, nil
}

// paced is what an open loop did.
type paced struct {
	sent, Meanwhile int64 // calls, and those answered before the loop's time was over
	offered         float64
	Began, Latency  *harness.Histogram // from when a call was due until it was begun, and until it was answered
}

// Backlog is how long the load needed to bring what was unanswered when the time was over.
func (p paced) Backlog() time.Duration {
	return time.Duration(float64(p.sent-p.Meanwhile) / p.offered * float64(time.Second))
}

// underWayLimit bounds the calls of an open loop: fewer than a server takes from one client.
const underWayLimit = 2048

// OpenLoop begins rate calls a second at fixed times for d, whether or not those
// before were answered, and waits for the last answers. Latency counts from when
// a call was due: what keeps the loop from beginning it is not forgiven.
func OpenLoop(ctx context.Context, d time.Duration, rate float64, call func(ctx context.Context, n int) error) (paced, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := paced{offered: rate, Began: &harness.Histogram{}, Latency: &harness.Histogram{}}
	due := make(chan int)
	var group sync.WaitGroup
	var meanwhile atomic.Int64
	start := time.Now().Add(time.Millisecond)
	at := func(i int) time.Time { return start.Add(time.Duration(float64(i) / rate * float64(time.Second))) }
	one := func(i int) {
		p.Began.Record(time.Since(at(i)))
		if err := call(ctx, i); err != nil {
			cancel(err)
			return
		}
		now := time.Now()
		p.Latency.Record(now.Sub(at(i)))
		if now.Sub(start) <= d {
			meanwhile.Add(1)
		}
	}
	callers := 0
	err := OnTime(ctx, int(d.Seconds()*rate), at, func(i int) error {
		p.sent++
		select {
		case due <- i: // somebody has nothing to do
			return nil
		default:
		}
		if callers == underWayLimit {
			select {
			case due <- i:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		callers++
		group.Go(func() {
			for one(i); ; one(i) {
				var more bool
				if i, more = <-due; !more {
					return
				}
			}
		})
		return nil
	})
	close(due)
	group.Wait()
	p.Meanwhile = meanwhile.Load()
	if cause := context.Cause(ctx); cause != nil {
		return p, cause
	}
	return p, err
}

// Caller sends prepared requests of one method.
type Caller struct {
	Pool     Pool
	Method   string
	Requests []*Wire
}

// Call sends the n-th request of the caller's list.
func (c Caller) Call(ctx context.Context, worker, n int) error {
	out := Wire{Data: make([]byte, 0, 64)}
	err := c.Pool[worker%len(c.Pool)].Invoke(ctx, c.Method, c.Requests[n%len(c.Requests)], &out, ClientCodec())
	if err != nil {
		return fmt.Errorf("%s: %w", c.Method, err)
	}
	return nil
}

// CPUPerCall runs a closed loop against a server in a child, and returns calls
// per second, the server's CPU per call in microseconds, its allocations per
// call, and how busy it kept a core.
func CPUPerCall(ctx context.Context, server *harness.Child, d time.Duration, inFlight int, c Caller) (map[string]float64, error) {
	before, err := server.Usage()
	if err != nil {
		return nil, err
	}
	var counts [256]int
	t, err := ClosedLoop(ctx, d, inFlight, func(ctx context.Context, worker int) error {
		counts[worker]++
		return c.Call(ctx, worker, worker*31+counts[worker])
	})
	if err != nil {
		return nil, err
	}
	after, err := server.Usage()
	if err != nil {
		return nil, err
	}
	return LoopNumbers(t, before, after), nil
}

// LoopNumbers are those of CPUPerCall.
func LoopNumbers(t Turns, before, after harness.Usage) map[string]float64 {
	cpu := (after.CPU - before.CPU).Seconds()
	return map[string]float64{
		"rate":   t.Rate(),
		"cpu":    cpu * 1e6 / float64(t.Done),
		"allocs": float64(after.Mallocs-before.Mallocs) / float64(t.Done),
		"busy":   cpu / t.Elapsed.Seconds(),
		"p50":    t.Latency.Quantile(.50).Seconds() * 1e6,
		"p99":    t.Latency.Quantile(.99).Seconds() * 1e6,
	}
}

// ReadsInFlight is how many reads are in flight at a time, as in the ceilings
// that were measured before.
const ReadsInFlight = 64

// BenchQueue is the queue of cycles.
const BenchQueue = "bench/cycles"

// QueueConnections is how many connections carry the calls of a queue, and of the echo beside it.
const QueueConnections = 4
