package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// pool is a few connections to one server, used in turn.
type pool []*grpc.ClientConn

func dial(addr string, connections int) (pool, error) {
	p := make(pool, connections)
	for i := range p {
		var err error
		if p[i], err = rpc.Dial(addr, rpc.DialConfig{}); err != nil {
			return nil, errors.Join(err, p[:i].Close())
		}
	}
	return p, nil
}

// Close closes the connections.
func (p pool) Close() error {
	var err error
	for _, c := range p {
		err = errors.Join(err, c.Close())
	}
	return err
}

// turns is what a closed loop did.
type turns struct {
	done    int64
	elapsed time.Duration
	latency *histogram
}

func (t turns) rate() float64 { return float64(t.done) / t.elapsed.Seconds() }

// closedLoop lets callers call again and again for d, one call in flight each,
// and waits for the last answers. The first error ends it.
func closedLoop(ctx context.Context, d time.Duration, callers int, call func(ctx context.Context, caller int) error) (turns, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := turns{latency: &histogram{}}
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
				t.latency.record(now.Sub(at))
				at = now
			}
			done.Add(mine)
		})
	}
	group.Wait()
	t.done, t.elapsed = done.Load(), time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return t, err
	}
	return t, nil
}

// paced is what an open loop did.
type paced struct {
	sent, meanwhile int64 // calls, and those answered before the loop's time was over
	offered         float64
	began, latency  *histogram // from when a call was due until it was begun, and until it was answered
}

// backlog is how long the load needed to bring what was unanswered when the time was over.
func (p paced) backlog() time.Duration {
	return time.Duration(float64(p.sent-p.meanwhile) / p.offered * float64(time.Second))
}

// underWayLimit bounds the calls of an open loop: fewer than a server takes from one client.
const underWayLimit = 2048

// openLoop begins rate calls a second at fixed times for d, whether or not those
// before were answered, and waits for the last answers. Latency counts from when
// a call was due: what keeps the loop from beginning it is not forgiven.
func openLoop(ctx context.Context, d time.Duration, rate float64, call func(ctx context.Context, n int) error) (paced, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := paced{offered: rate, began: &histogram{}, latency: &histogram{}}
	due := make(chan int)
	var group sync.WaitGroup
	var meanwhile atomic.Int64
	start := time.Now().Add(time.Millisecond)
	at := func(i int) time.Time { return start.Add(time.Duration(float64(i) / rate * float64(time.Second))) }
	one := func(i int) {
		p.began.record(time.Since(at(i)))
		if err := call(ctx, i); err != nil {
			cancel(err)
			return
		}
		now := time.Now()
		p.latency.record(now.Sub(at(i)))
		if now.Sub(start) <= d {
			meanwhile.Add(1)
		}
	}
	callers := 0
	err := onTime(ctx, int(d.Seconds()*rate), at, func(i int) error {
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
	p.meanwhile = meanwhile.Load()
	if cause := context.Cause(ctx); cause != nil {
		return p, cause
	}
	return p, err
}

// caller sends prepared requests of one method.
type caller struct {
	pool     pool
	method   string
	requests []*wire
}

// call sends the n-th request of the caller's list.
func (c caller) call(ctx context.Context, worker, n int) error {
	out := wire{data: make([]byte, 0, 64)}
	err := c.pool[worker%len(c.pool)].Invoke(ctx, c.method, c.requests[n%len(c.requests)], &out, clientCodec())
	if err != nil {
		return fmt.Errorf("%s: %w", c.method, err)
	}
	return nil
}

// cpuPerCall runs a closed loop against a server in a child, and returns calls
// per second, the server's CPU per call in microseconds, its allocations per
// call, and how busy it kept a core.
func cpuPerCall(ctx context.Context, server *child, d time.Duration, inFlight int, c caller) (map[string]float64, error) {
	before, err := server.usage()
	if err != nil {
		return nil, err
	}
	var counts [256]int
	t, err := closedLoop(ctx, d, inFlight, func(ctx context.Context, worker int) error {
		counts[worker]++
		return c.call(ctx, worker, worker*31+counts[worker])
	})
	if err != nil {
		return nil, err
	}
	after, err := server.usage()
	if err != nil {
		return nil, err
	}
	return loopNumbers(t, before, after), nil
}

// loopNumbers are those of cpuPerCall.
func loopNumbers(t turns, before, after usage) map[string]float64 {
	cpu := (after.CPU - before.CPU).Seconds()
	return map[string]float64{
		"rate":   t.rate(),
		"cpu":    cpu * 1e6 / float64(t.done),
		"allocs": float64(after.Mallocs-before.Mallocs) / float64(t.done),
		"busy":   cpu / t.elapsed.Seconds(),
		"p50":    t.latency.quantile(.50).Seconds() * 1e6,
		"p99":    t.latency.quantile(.99).Seconds() * 1e6,
	}
}
