package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// queryStreams is how many query streams a driver keeps busy; together they
// have as many calls in flight as the unary ones.
const queryStreams = 4

// Fields of QueryRequest and QueryResponse that the driver reads and writes itself.
const (
	queryTag      protowire.Number = 1
	queryByIndex  protowire.Number = 5 // in requests and in answers
	queryHasError protowire.Number = 11
)

// queryRequest is an encoded QueryRequest that carries an encoded ByIndexRequest.
func queryRequest(tag uint64, byIndex *load.Wire) *load.Wire {
	data := protowire.AppendVarint(protowire.AppendTag(nil, queryTag, protowire.VarintType), tag)
	return &load.Wire{Data: protowire.AppendBytes(protowire.AppendTag(data, queryByIndex, protowire.BytesType), byIndex.Data)}
}

// queryAnswer reads which call a QueryResponse answers, of which it may hold
// only the beginning.
func queryAnswer(data []byte) (tag uint64, err error) {
	answered := false
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		data = data[n:]
		switch {
		case number == queryTag && kind == protowire.VarintType:
			if tag, n = protowire.ConsumeVarint(data); n < 0 {
				return 0, protowire.ParseError(n)
			}
			data = data[n:]
		case number == queryByIndex:
			answered, data = true, nil // it may be cut here
		case number == queryHasError:
			return tag, fmt.Errorf("call %d was answered with an error: %q", tag, data)
		default:
			return tag, fmt.Errorf("answer to call %d has field %d", tag, number)
		}
	}
	if !answered {
		return tag, fmt.Errorf("call %d has no answer", tag)
	}
	return tag, nil
}

// queryOnce asks one question with the generated client, and checks the answer.
func queryOnce(ctx context.Context, conns load.Pool, question *load.Wire) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := conns[0].NewStream(ctx, &indexv1.IndexService_ServiceDesc.Streams[queryStreamAt()], indexv1.IndexService_Query_FullMethodName, load.ClientCodec())
	if err != nil {
		return err
	}
	if err := errors.Join(s.SendMsg(queryRequest(1, question)), s.CloseSend()); err != nil {
		return err
	}
	var got indexv1.QueryResponse
	if err := s.RecvMsg(&got); status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w: Query", system.ErrNotThere)
	} else if err != nil {
		return err
	}
	if n := len(got.GetByIndex().GetObjects()); got.GetTag() != 1 || n != population.PodsPerNode {
		return fmt.Errorf("tag %d with %d objects, want 1 with %d: %v", got.GetTag(), n, population.PodsPerNode, got.GetError())
	}
	return nil
}

// queryStreamAt is where the Query stream is described.
func queryStreamAt() int {
	for i, d := range indexv1.IndexService_ServiceDesc.Streams {
		if d.StreamName == "Query" {
			return i
		}
	}
	return 0
}

// queryTurn is the side that asks by query streams.
func queryTurn(b *harness.Bench, x *system.Replica, asked []*load.Wire) harness.Side {
	return harness.Side{Name: "stream", Run: func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
		err = b.Profiled(x.Child, "index-stream", func() error {
			before, err := x.Usage()
			if err != nil {
				return err
			}
			t, err := queryLoop(ctx, x.Conns, d, asked)
			if err != nil {
				return err
			}
			after, err := x.Usage()
			got = load.LoopNumbers(t, before, after)
			return err
		})
		return perCore(got), err
	}}
}

// queryLoop keeps query streams busy for d.
func queryLoop(ctx context.Context, conns load.Pool, d time.Duration, asked []*load.Wire) (load.Turns, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var counts [queryStreams]int64
	var errs [queryStreams]error
	var group sync.WaitGroup
	began := time.Now()
	for i := range queryStreams {
		group.Go(func() {
			counts[i], errs[i] = queryStream(ctx, conns[i%len(conns)], began.Add(d), asked, i)
			if errs[i] != nil {
				cancel() // the others have nothing to wait for
			}
		})
	}
	group.Wait()
	t := load.Turns{Elapsed: time.Since(began), Latency: &harness.Histogram{}}
	for _, n := range counts {
		t.Done += n
	}
	return t, errors.Join(errs[:]...)
}

// queryStream asks one question for every answer, with a window of them under
// way, until the time is over; then it takes the last answers.
func queryStream(ctx context.Context, conn *grpc.ClientConn, until time.Time, asked []*load.Wire, stream int) (n int64, err error) {
	const window = load.ReadsInFlight / queryStreams
	s, err := conn.NewStream(ctx, &indexv1.IndexService_ServiceDesc.Streams[queryStreamAt()], indexv1.IndexService_Query_FullMethodName, load.ClientCodec())
	if err != nil {
		return 0, err
	}
	free := make(chan uint64, window) // tags without a call
	defer close(free)
	for tag := range uint64(window) {
		free <- tag + 1
	}
	sent := make(chan error, 1)
	go func() {
		at := stream * 31
		for tag := range free {
			if time.Now().After(until) {
				break
			}
			if err := s.SendMsg(queryRequest(tag, asked[at%len(asked)])); err != nil {
				sent <- err
				return
			}
			at++
		}
		sent <- s.CloseSend()
	}()
	out := load.Wire{Data: make([]byte, 0, 256)}
	for {
		if err := s.RecvMsg(&out); errors.Is(err, io.EOF) {
			return n, <-sent
		} else if err != nil {
			return n, err
		}
		tag, err := queryAnswer(out.Data)
		if err != nil {
			return n, err
		}
		n++
		free <- tag
	}
}
