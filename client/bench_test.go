package client_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue"
)

// BenchmarkWorker is one add, lease and settle per key through one worker on
// the memory engine, client and server in this process.
func BenchmarkWorker(b *testing.B) {
	tel, err := telemetry.Setup(b.Context(), telemetry.Config{LogOutput: b.Output(), LogLevel: "warn"})
	if err != nil {
		b.Fatal(err)
	}
	s, err := queue.New(queue.Config{}, tel)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	served := make(chan error, 2)
	go func() { served <- s.Run(ctx) }()
	addr, err := s.Addr(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	conn, err := client.Dial(addr, client.DialConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	q := client.NewQueue(conn, "dev/bench", "")
	if _, _, err := q.Configure(ctx, nil); err != nil {
		b.Fatal(err)
	}
	const keys = 1000
	var done atomic.Int64
	all := make(chan struct{}, 1)
	w, err := client.NewWorker(conn, client.ReconcilerFunc(func(context.Context, client.Item) (client.Result, error) {
		if done.Add(1)%keys == 0 {
			all <- struct{}{}
		}
		return client.Result{}, nil
	}), client.WorkerConfig{Queue: "dev/bench", Concurrency: 256, Prefetch: 256})
	if err != nil {
		b.Fatal(err)
	}
	worked := make(chan error, 1)
	wctx, stop := context.WithCancel(ctx)
	go func() { worked <- w.Run(wctx) }()

	b.ReportAllocs()
	for round := 0; b.Loop(); round++ {
		items := make([]client.AddItem, keys)
		for i := range items {
			items[i].Key = fmt.Sprintf("ns/%d-%d", round, i)
		}
		if _, err := q.Add(ctx, items...); err != nil {
			b.Fatal(err)
		}
		<-all
	}
	b.ReportMetric(float64(b.N)*keys/b.Elapsed().Seconds(), "keys/s")
	stop()
	if err := <-worked; err != nil {
		b.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		b.Error(err)
	}
}
