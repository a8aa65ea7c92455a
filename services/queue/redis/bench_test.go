package redis_test

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// BenchmarkTurn is whole cycles by a bare engine: each turn settles a batch,
// adds the next one and leases it. It reports Redis' own CPU time per cycle,
// which is steadier than the rate.
func BenchmarkTurn(b *testing.B) {
	for _, batch := range []int{1, 16, 64, 256} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			srv, err := embedded.StartRedis(context.Background(), filepath.Join(b.TempDir(), "redis"))
			if err != nil {
				b.Fatal(err)
			}
			defer srv.Stop()
			e, err := redis.New(redis.Config{URL: srv.URL()})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			q, _, err := e.Configure(b.Context(), "dev/job", workqueue.Config{})
			if err != nil {
				b.Fatal(err)
			}
			c := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
			defer c.Close()
			in := workqueue.Turn{Takes: []workqueue.Take{{Holder: "session-of-a-worker", Max: batch}}}
			next := 0
			var held []workqueue.Lease
			before := cpu(b, c)
			b.ResetTimer()
			cycles := 0
			for cycles < b.N {
				in.Ops = in.Ops[:0]
				for _, l := range held {
					in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget})
				}
				for range batch {
					next++
					in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: "default/some-job-" + strconv.Itoa(next), Level: workqueue.Level(0)})
				}
				r, err := q.Partitions()[0].Turn(b.Context(), &in)
				if err != nil {
					b.Fatal(err)
				}
				held = r.Leases
				cycles += len(held)
			}
			b.StopTimer()
			b.ReportMetric((cpu(b, c)-before)/float64(cycles)*1e6, "redis-us/cycle")
			b.ReportMetric(float64(cycles)/b.Elapsed().Seconds(), "cycles/s")
		})
	}
}

// cpu is the processor time Redis has used, in seconds.
func cpu(b *testing.B, c *goredis.Client) float64 {
	b.Helper()
	info, err := c.Info(context.Background(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(info) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += f
		}
	}
	return sum
}
