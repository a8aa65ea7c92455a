package memory_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

// BenchmarkPartition is add, lease and settle of one key by transactions of 128, one
// caller per partition.
func BenchmarkPartition(b *testing.B) {
	for _, bc := range []struct {
		name  string
		log   bool
		cfg   workqueue.Config
		parts int
	}{
		{"memory", false, workqueue.Config{}, 1},
		{"memory/partitions=4", false, workqueue.Config{}, 4},
		{"log", true, workqueue.Config{}, 1},
		{"fsync", true, workqueue.Config{Durability: workqueue.Fsync}, 1},
		{"fsync/partitions=8", true, workqueue.Config{Durability: workqueue.Fsync}, 8},
	} {
		b.Run(bc.name, func(b *testing.B) {
			cfg := memory.Config{}
			if bc.log {
				cfg.Dir = b.TempDir()
			}
			e, err := memory.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			bc.cfg.Partitions = bc.parts
			q, _, err := e.Configure(b.Context(), "bench/q", bc.cfg)
			if err != nil {
				b.Fatal(err)
			}
			var wg sync.WaitGroup
			for i, p := range q.Partitions() {
				wg.Go(func() { cycles(b, p, i > 0, b.N/bc.parts+1) })
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
		})
	}
}

// cycles settles what the transaction before leased, adds as much and leases it, as a
// dispatcher with a full window does.
func cycles(b *testing.B, p engine.Partition, away bool, n int) {
	const batch = 128
	keys := make([]string, 1<<12)
	for i := range keys {
		keys[i] = "default/some-job-" + strconv.Itoa(i)
	}
	t := &workqueue.Transaction{Away: away, Takes: []workqueue.Take{{Holder: "worker", Max: batch}}}
	var held []workqueue.Lease
	for done := 0; done < n; done += batch {
		t.Ops = t.Ops[:0]
		for _, l := range held {
			t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget})
		}
		for i := range batch {
			t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: keys[(done+i)%len(keys)], Level: workqueue.Level(0)})
		}
		r, err := p.Apply(b.Context(), t)
		if err != nil {
			b.Error(err)
			return
		}
		held = r.Leases
	}
}
