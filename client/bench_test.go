package client_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// benchService runs a queue service in this process.
func benchService(b *testing.B, cfg queue.Config) *grpc.ClientConn {
	b.Helper()
	conn, err := client.Dial(queuetest.Address(b, cfg, "warn"), client.DialConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return conn
}

// BenchmarkCycle is one add, lease and settle through a Producer and a Worker,
// client and service in this process: every caller adds its key when the worker
// has had it.
func BenchmarkCycle(b *testing.B) {
	for _, engine := range []string{"memory", "redis"} {
		for _, flight := range []int{256, 1024} {
			b.Run(fmt.Sprintf("%s/flight=%d", engine, flight), func(b *testing.B) {
				cfg := queue.Config{}
				if engine == "redis" {
					cfg.RedisURL = embeddedtest.Redis(b).URL()
				}
				benchCycle(b, benchService(b, cfg), flight)
			})
		}
	}
}

func benchCycle(b *testing.B, conn *grpc.ClientConn, flight int) {
	b.Helper()
	if _, err := client.NewQueue(conn, "dev/bench", "").Configure(b.Context(), client.QueueConfig{}); err != nil {
		b.Fatal(err)
	}
	ran := make([]chan struct{}, flight)
	for i := range ran {
		ran[i] = make(chan struct{}, 1)
	}
	w, err := client.NewWorker(conn, client.ReconcilerFunc(func(_ context.Context, item client.Item) (client.Result, error) {
		i, err := strconv.Atoi(item.Key[strings.LastIndexByte(item.Key, '-')+1:])
		if err == nil {
			ran[i] <- struct{}{}
		}
		return client.Result{}, err
	}), client.WorkerConfig{Queue: "dev/bench", Concurrency: 256, Prefetch: flight})
	if err != nil {
		b.Fatal(err)
	}
	p, err := client.NewProducer(conn, client.ProducerConfig{Queue: "dev/bench"})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var parts sync.WaitGroup
	parts.Go(func() { _ = w.Run(ctx) })
	parts.Go(func() { _ = p.Run(ctx) })
	b.ReportAllocs()
	b.ResetTimer()
	var callers sync.WaitGroup
	for i := range flight {
		callers.Go(func() {
			op := client.Op{Key: fmt.Sprintf("namespace/name-%07d", i)}
			for range b.N / flight {
				if _, err := p.Do(ctx, op); err != nil {
					b.Error(err)
					return
				}
				<-ran[i]
			}
		})
	}
	callers.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
	stop()
	parts.Wait()
}

// BenchmarkStorm is 1,000 callers who add 100 hot keys, each add acknowledged
// after the store's turn.
func BenchmarkStorm(b *testing.B) {
	for _, engine := range []string{"memory", "redis"} {
		b.Run(engine, func(b *testing.B) {
			cfg := queue.Config{}
			if engine == "redis" {
				cfg.RedisURL = embeddedtest.Redis(b).URL()
			}
			conn := benchService(b, cfg)
			if _, err := client.NewQueue(conn, "dev/storm", "").Configure(b.Context(), client.QueueConfig{}); err != nil {
				b.Fatal(err)
			}
			p, err := client.NewProducer(conn, client.ProducerConfig{Queue: "dev/storm"})
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			var parts sync.WaitGroup
			parts.Go(func() { _ = p.Run(ctx) })
			b.ReportAllocs()
			b.ResetTimer()
			var callers sync.WaitGroup
			const many, hot = 1000, 100
			for i := range many {
				callers.Go(func() {
					op := client.Op{Key: fmt.Sprintf("namespace/name-%07d", i%hot)}
					for range b.N / many {
						if _, err := p.Do(ctx, op); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			callers.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "adds/s")
			stop()
			parts.Wait()
		})
	}
}
