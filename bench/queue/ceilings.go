package queue

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	queueredis "github.com/deltaplane/deltaplane/services/queue/redis"
)

// pipelined sends one command again and again on 4 connections, 64 at a time on each.
func pipelined(ctx context.Context, addr string, d time.Duration, command ...string) (load.Turns, error) {
	const connections, deep = 4, 64
	var once bytes.Buffer
	fmt.Fprintf(&once, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&once, "$%d\r\n%s\r\n", len(word), word)
	}
	batch := bytes.Repeat(once.Bytes(), deep)
	var counts [connections]int64
	var errs [connections]error
	var group sync.WaitGroup
	began := time.Now()
	for i := range connections {
		group.Go(func() {
			counts[i], errs[i] = pipelineOf(ctx, addr, d, batch, deep)
		})
	}
	group.Wait()
	t := load.Turns{Elapsed: time.Since(began), Latency: &harness.Histogram{}}
	for _, n := range counts {
		t.Done += n
	}
	return t, errors.Join(errs[:]...)
}

// pipelineOf writes a batch and reads its one-line answers until d has passed.
func pipelineOf(ctx context.Context, addr string, d time.Duration, batch []byte, deep int) (n int64, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 16<<10)
	for began := time.Now(); time.Since(began) < d && ctx.Err() == nil; n += int64(deep) {
		if _, err := conn.Write(batch); err != nil {
			return n, err
		}
		for range deep {
			line, err := in.ReadSlice('\n')
			if err != nil {
				return n, err
			}
			if line[0] == '-' {
				return n, fmt.Errorf("redis: %s", bytes.TrimSpace(line))
			}
		}
	}
	return n, ctx.Err()
}

// bareTurns makes cycles by the product's own turn script without a server:
// each turn settles a batch, adds the next one and leases it.
type bareTurns struct {
	engine engine.Engine
	queue  engine.Queue
	next   uint64
}

func newBareTurns(ctx context.Context, url string) (*bareTurns, error) {
	e, err := queueredis.New(queueredis.Config{URL: url, Prefix: "bare"})
	if err != nil {
		return nil, err
	}
	q, _, err := e.Configure(ctx, "bench/bare", workqueue.Config{})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &bareTurns{engine: e, queue: q}, nil
}

func (t *bareTurns) run(ctx context.Context, d time.Duration, batch int) (load.Turns, error) {
	return engineTurns(ctx, t.queue, &t.next, d, batch)
}

// engineTurns drives an engine by turns of one batch each and leaves the queue empty.
func engineTurns(ctx context.Context, q engine.Queue, next *uint64, d time.Duration, batch int) (load.Turns, error) {
	p := q.Partitions()[0]
	in := workqueue.Transaction{Takes: []workqueue.Take{{Holder: "session-of-a-worker", Max: batch}}}
	t := load.Turns{Latency: &harness.Histogram{}}
	var held []workqueue.Lease
	began := time.Now()
	for last := false; !last; {
		if last = time.Since(began) >= d; last {
			in.Takes = nil
		}
		in.Ops = in.Ops[:0]
		for _, l := range held {
			in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget})
		}
		for range batch {
			if last {
				break
			}
			*next++
			in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: benchKey(*next), Level: uint8(*next % workqueue.Levels)})
		}
		r, err := p.Apply(ctx, &in)
		if err != nil {
			return t, err
		}
		for i := range held {
			if s := r.Replies[i].Status; s != workqueue.Settled {
				return t, fmt.Errorf("settlement answered %d", s)
			}
		}
		t.Done += int64(len(held))
		held = r.Leases
	}
	t.Elapsed = time.Since(began)
	if s, err := p.Status(ctx); err != nil || s.Counts != (workqueue.Counts{}) {
		return t, errors.Join(err, load.ErrBooks, fmt.Errorf("left: %+v", s.Counts))
	}
	return t, nil
}

const (
	// echoStream answers every message of a stream with one of its own bytes.
	echoStream = "/" + load.EchoService + "/Stream"
	echoWindow = 64 // messages under way on a stream
)

// echoStreams keeps 4 streams busy, one item of 64 bytes a message.
func echoStreams(ctx context.Context, p load.Pool, d time.Duration) (load.Turns, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const streams = 4
	var counts [streams]int64
	var errs [streams]error
	var group sync.WaitGroup
	began := time.Now()
	for i := range streams {
		group.Go(func() { counts[i], errs[i] = echoStreamOf(ctx, p[i%len(p)], began.Add(d)) })
	}
	group.Wait()
	t := load.Turns{Elapsed: time.Since(began), Latency: &harness.Histogram{}}
	for _, n := range counts {
		t.Done += n
	}
	return t, errors.Join(errs[:]...)
}

func echoStreamOf(ctx context.Context, conn *grpc.ClientConn, until time.Time) (n int64, err error) {
	s, err := conn.NewStream(ctx, &load.EchoStreamDesc, echoStream, load.ClientCodec())
	if err != nil {
		return 0, err
	}
	out := &load.Wire{Data: []byte("an item of sixty-four bytes, as long as an assigned key is: " + strconv.Itoa(1000))}
	free := make(chan struct{}, echoWindow)
	for range echoWindow {
		free <- struct{}{}
	}
	sent := make(chan error, 1)
	go func() {
		for range free {
			if time.Now().After(until) {
				break
			}
			if err := s.SendMsg(out); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.CloseSend()
	}()
	in := load.Wire{Data: make([]byte, 0, 256)}
	for {
		if err := s.RecvMsg(&in); errors.Is(err, io.EOF) {
			return n, <-sent
		} else if err != nil {
			return n, err
		}
		n++
		select {
		case free <- struct{}{}:
		default: // the sender has stopped
		}
	}
}
