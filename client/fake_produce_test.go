package client_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

var errUnimplemented = status.Error(codes.Unimplemented, "unknown method Produce")

// producing is a queue service whose Produce streams a test plays by hand.
type producing struct {
	queuev1.UnimplementedQueueServiceServer
	streams chan *produceScript
}

// produceScript is one Produce stream, seen from the server.
type produceScript struct {
	hello *queuev1.ProduceHello
	in    chan *queuev1.ProduceBatch // closed when the producer has said all
	out   chan *queuev1.ProduceResponse
	end   chan error
}

func (s *producing) Produce(stream queuev1.QueueService_ProduceServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	sc := &produceScript{
		hello: first.GetHello(), in: make(chan *queuev1.ProduceBatch, 1000), out: make(chan *queuev1.ProduceResponse, 1000), end: make(chan error, 1),
	}
	s.streams <- sc
	go func() {
		defer close(sc.in)
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			sc.in <- req.GetBatch()
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

func (sc *produceScript) welcome(window int32) {
	sc.out <- &queuev1.ProduceResponse{Kind: &queuev1.ProduceResponse_Welcome{Welcome: &queuev1.ProduceWelcome{Generation: "g1", Window: window}}}
}

func (sc *produceScript) answer(m *queuev1.Produced) {
	sc.out <- &queuev1.ProduceResponse{Kind: &queuev1.ProduceResponse_Produced{Produced: m}}
}

// queued answers a batch of adds.
func (sc *produceScript) queued(b *queuev1.ProduceBatch) {
	m := &queuev1.Produced{RequestId: b.GetRequestId()}
	for range b.GetOps() {
		m.Statuses = append(m.Statuses, queuev1.AddStatus_ADD_STATUS_QUEUED)
	}
	sc.answer(m)
}

func (sc *produceScript) refuse(b *queuev1.ProduceBatch, e *queuev1.ProduceError) {
	sc.answer(&queuev1.Produced{RequestId: b.GetRequestId(), Error: e})
}

func (sc *produceScript) reconnect() {
	sc.out <- &queuev1.ProduceResponse{Kind: &queuev1.ProduceResponse_Control{Control: &queuev1.Control{Action: queuev1.Action_ACTION_RECONNECT}}}
}

func keysOf(b *queuev1.ProduceBatch) []string {
	var keys []string
	for _, op := range b.GetOps() {
		keys = append(keys, op.GetKey())
	}
	return keys
}

// produce runs a producer against a played service, inside a synctest bubble.
func produce(t *testing.T, cfg client.ProducerConfig) (p *client.Producer, s *producing, stop func()) {
	t.Helper()
	s = &producing{streams: make(chan *produceScript, 10)}
	conn, stopServer := serve(t, func(r grpc.ServiceRegistrar) { queuev1.RegisterQueueServiceServer(r, s) })
	cfg.Queue = "dev/test"
	p, err := client.NewProducer(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		stopServer()
	}
	t.Cleanup(stop)
	return p, s, stop
}
