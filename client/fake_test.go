package client_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs register's services in memory and returns a connection to them.
// Both end with stop.
func serve(t *testing.T, register func(grpc.ServiceRegistrar)) (conn *grpc.ClientConn, stop func()) {
	t.Helper()
	srv := grpc.NewServer()
	register(srv)
	lis := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() {
		_ = srv.Serve(lis)
		close(done)
	}()
	conn, err := client.Dial("fake", rpc.DialConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }})
	if err != nil {
		t.Fatal(err)
	}
	return conn, func() {
		conn.Close()
		srv.Stop()
		<-done
	}
}

// scripted is a queue service whose Work streams a test plays by hand.
type scripted struct {
	queuev1.UnimplementedQueueServiceServer
	streams chan *script
}

// script is one Work stream, seen from the server.
type script struct {
	hello  *queuev1.Hello
	in     chan *queuev1.WorkRequest
	out    chan *queuev1.WorkResponse
	end    chan error
	closed chan struct{}
}

func (s *scripted) Work(stream queuev1.QueueService_WorkServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	sc := &script{
		hello: first.GetHello(), in: make(chan *queuev1.WorkRequest, 1000), out: make(chan *queuev1.WorkResponse, 1000),
		end: make(chan error, 1), closed: make(chan struct{}),
	}
	defer close(sc.closed)
	s.streams <- sc
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				close(sc.in)
				return
			}
			sc.in <- req
		}
	}()
	for {
		select {
		case resp := <-sc.out:
			if err := stream.Send(resp); err != nil {
				return err
			}
		case err := <-sc.end:
			return err
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

const testLease = 10 * time.Second

// serverClock is what a scripted service's clock shows.
func serverClock() int64 { return time.Now().UnixMicro() }

func (sc *script) welcome(w *queuev1.Welcome) {
	if w.LeaseDuration == nil {
		w.LeaseDuration = durationpb.New(testLease)
	}
	if w.ClockUs == 0 {
		w.ClockUs = serverClock()
	}
	sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Welcome{Welcome: w}}
}

func (sc *script) assign(leases ...*queuev1.Lease) {
	for _, l := range leases {
		if l.Remaining == nil {
			l.Remaining = durationpb.New(testLease)
		}
		if l.EndsUs == 0 {
			l.EndsUs = serverClock() + l.Remaining.AsDuration().Microseconds()
		}
	}
	sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Assign{Assign: &queuev1.Assign{Leases: leases}}}
}

func (sc *script) extended(e *queuev1.Extended) {
	sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Extended{Extended: e}}
}

func (sc *script) control(action queuev1.Action, leases ...*queuev1.LeaseRef) {
	sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Control{Control: &queuev1.Control{Action: action, Leases: leases}}}
}

func (sc *script) answer(b *queuev1.SettleBatch) {
	settled := &queuev1.Settled{RequestId: b.GetRequestId()}
	for _, s := range b.GetSettlements() {
		settled.Results = append(settled.Results, &queuev1.SettleResult{Key: s.GetKey(), Token: s.GetToken(), Status: queuev1.SettleStatus_SETTLE_STATUS_SETTLED})
	}
	sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Settled{Settled: settled}}
}

// settle waits for the next batch of settlements, passing over what else comes.
func (sc *script) settle() *queuev1.SettleBatch {
	for req := range sc.in {
		if b := req.GetSettle(); b != nil {
			return b
		}
	}
	return nil
}

// answerAll answers settlements until the stream ends.
func (sc *script) answerAll() {
	for b := sc.settle(); b != nil; b = sc.settle() {
		sc.answer(b)
	}
}

// ping waits for the next ping and returns its number.
func (sc *script) ping() uint64 {
	for req := range sc.in {
		if p := req.GetPing(); p != nil {
			return p.GetId()
		}
	}
	return 0
}

// extend waits for the next request for more time; settlements are answered.
func (sc *script) extend() *queuev1.ExtendBatch {
	for req := range sc.in {
		if b := req.GetExtend(); b != nil {
			return b
		}
		if b := req.GetSettle(); b != nil {
			sc.answer(b)
		}
	}
	return nil
}

func (sc *script) goodbye() bool {
	for req := range sc.in {
		if req.GetGoodbye() != nil {
			return true
		}
	}
	return false
}

// worker runs a worker against a scripted service, inside a synctest bubble.
type bench struct {
	*scripted
	w    *client.Worker
	stop func() error // ends the worker's context and returns what Run returned
	wait func() error
}

func work(t *testing.T, cfg client.WorkerConfig, rec client.ReconcilerFunc) *bench {
	t.Helper()
	s := &scripted{streams: make(chan *script, 10)}
	conn, stopServer := serve(t, func(r grpc.ServiceRegistrar) { queuev1.RegisterQueueServiceServer(r, s) })
	cfg.Queue = "dev/test"
	w, err := client.NewWorker(conn, rec, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	var result error
	wait := func() error {
		once.Do(func() {
			result = <-done
			stopServer()
		})
		return result
	}
	b := &bench{scripted: s, w: w, wait: wait, stop: func() error { cancel(); return wait() }}
	t.Cleanup(func() { _ = b.stop() })
	return b
}

func (b *bench) open() *script {
	sc := <-b.streams
	sc.welcome(&queuev1.Welcome{Generation: "g1"})
	return sc
}

// shelf is an index service that lists what it is given.
type shelf struct {
	indexv1.UnimplementedIndexServiceServer
	mu   sync.Mutex
	list func(*indexv1.ListRequest) (*indexv1.ListResponse, error)
}

func (s *shelf) List(_ context.Context, req *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list(req)
}
