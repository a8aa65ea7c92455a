package client_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// nodding is a queue service that answers every batch at once.
type nodding struct {
	queuev1.UnimplementedQueueServiceServer
	ops atomic.Int64
}

func (s *nodding) Produce(stream queuev1.QueueService_ProduceServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&queuev1.ProduceResponse{Kind: &queuev1.ProduceResponse_Welcome{Welcome: &queuev1.ProduceWelcome{Window: 16}}}); err != nil {
		return err
	}
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		b := req.GetBatch()
		m := &queuev1.Produced{RequestId: b.GetRequestId(), Statuses: make([]queuev1.AddStatus, len(b.GetOps()))}
		for i := range m.Statuses {
			m.Statuses[i] = queuev1.AddStatus_ADD_STATUS_QUEUED
		}
		s.ops.Add(int64(len(b.GetOps())))
		if err := stream.Send(&queuev1.ProduceResponse{Kind: &queuev1.ProduceResponse_Produced{Produced: m}}); err != nil {
			return err
		}
	}
}

// BenchmarkProducer is what the client side of an acknowledged add costs, with
// 1,000 callers: each on keys of its own, and all on 100 hot ones. The service
// does nothing.
func BenchmarkProducer(b *testing.B) {
	for _, keys := range []int{100_000, 100} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s := &nodding{}
			srv := grpc.NewServer()
			queuev1.RegisterQueueServiceServer(srv, s)
			lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
			if err != nil {
				b.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(lis) }()
			conn, err := client.Dial(lis.Addr().String(), client.DialConfig{})
			if err != nil {
				b.Fatal(err)
			}
			p, err := client.NewProducer(conn, client.ProducerConfig{Queue: "dev/bench"})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
			ran := make(chan error, 1)
			go func() { ran <- p.Run(ctx) }()
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("namespace/object-%07d", i)
			}
			var next atomic.Int64
			b.SetParallelism(500)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					key := names[int(next.Add(1))%len(names)]
					if _, err := p.Do(b.Context(), client.Op{Key: key}); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "adds/s")
			b.ReportMetric(float64(b.N)/float64(s.ops.Load()), "adds/op-sent")
			cancel()
			<-ran
			conn.Close()
			srv.Stop()
			<-served
		})
	}
}
