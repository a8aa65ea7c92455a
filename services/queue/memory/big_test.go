package memory

import (
	"strconv"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// BenchmarkRewrite is the rewriting of a log of a million keys: how long it
// takes, and for how long it held up any of the transactions that went on.
func BenchmarkRewrite(b *testing.B) {
	e, err := New(Config{Dir: b.TempDir(), CompactBytes: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	of, _, err := e.Configure(b.Context(), name, workqueue.Config{})
	if err != nil {
		b.Fatal(err)
	}
	q := of.(*queue)
	const n = 1_000_000
	for i := 0; i < n; {
		in := workqueue.Transaction{}
		for range 1000 {
			in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: "default/some-job-" + strconv.Itoa(i), Delay: int64(i%2) * 3600e6})
			i++
		}
		if _, err := q.parts[0].Apply(b.Context(), &in); err != nil {
			b.Fatal(err)
		}
	}
	var worst, total time.Duration
	transactions := 0
	for b.Loop() {
		done := make(chan error)
		began := time.Now()
		go func() { done <- q.log.Rewrite(q.snapshot) }()
		for running := true; running; transactions++ {
			in := adds(64)
			in.Takes = []workqueue.Take{{Holder: "w", Max: 64}}
			start := time.Now()
			if _, err := q.parts[0].Apply(b.Context(), &in); err != nil {
				b.Fatal(err)
			}
			worst = max(worst, time.Since(start))
			select {
			case err := <-done:
				if err != nil {
					b.Fatal(err)
				}
				running = false
			case <-time.After(200 * time.Microsecond):
			}
		}
		total += time.Since(began)
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms-worst-transaction")
	b.ReportMetric(total.Seconds()/float64(b.N), "s/rewrite")
	start := time.Now()
	if _, _, err := replay(q.path()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(start).Seconds(), "s/replay")
}
