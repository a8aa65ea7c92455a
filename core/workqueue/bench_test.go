package workqueue_test

import (
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// BenchmarkCycle is add, lease and settle of one key, in transactions of a batch, of
// an empty queue and of one with a million ready and a million delayed keys.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []int{0, 1_000_000} {
		for _, batch := range []int{64, 256} {
			b.Run("keys="+strconv.Itoa(2*size)+"/batch="+strconv.Itoa(batch), func(b *testing.B) { cycle(b, size, batch, workqueue.Config{}) })
		}
	}
	limiter := backoff.Controller()
	b.Run("all options/batch=256", func(b *testing.B) {
		cycle(b, 0, 256, workqueue.Config{
			AbsorbDelays: true, ReserveOnce: true, Aging: time.Second, Limiter: &limiter, MaxProcessing: time.Hour,
			Dispatch: &workqueue.Rate{QPS: 1e6, Burst: 1 << 20},
		})
	})
}

func fill(m *workqueue.Machine, now int64, prefix string, n int, delay int64) {
	for i := 0; i < n; {
		t := &workqueue.Transaction{}
		for ; len(t.Ops) < 1000 && i < n; i++ {
			op := workqueue.Op{Kind: workqueue.OpAdd, Key: prefix + strconv.Itoa(i), Level: workqueue.Level(0)}
			if delay > 0 {
				op.Delay = delay + int64(i*7919%n)
			}
			t.Ops = append(t.Ops, op)
		}
		m.Apply(now, t)
	}
}

func cycle(b *testing.B, size, batch int, cfg workqueue.Config) {
	m := workqueue.New(cfg)
	now := int64(1e15)
	fill(m, now, "default/ready-job-", size, 0)
	fill(m, now, "default/later-job-", size, time.Hour.Microseconds())
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = "default/some-job-" + strconv.Itoa(i)
	}
	add, end := &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: batch}}}, &workqueue.Transaction{}
	add.Ops, end.Ops = make([]workqueue.Op, batch), make([]workqueue.Op, batch)
	runtime.GC()
	b.ReportAllocs()
	next := 0
	cpu := cpuTime()
	for b.Loop() {
		now++
		for i := range add.Ops {
			add.Ops[i] = workqueue.Op{Kind: workqueue.OpAdd, Key: keys[next%len(keys)], Level: workqueue.Level(0)}
			next++
		}
		r := m.Apply(now, add)
		for i, l := range r.Leases {
			end.Ops[i] = workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget}
		}
		m.Apply(now, end)
	}
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "cycles/s")
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N*batch), "cpu-ns/cycle")
}

// cpuTime is what the process used, with its collector: steadier than the
// clock where others use the machine.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkMemory reports the bytes that a key takes, 23 bytes of it its name.
func BenchmarkMemory(b *testing.B) {
	const n = 1_000_000
	for name, delay := range map[string]int64{"ready": 0, "delayed": 3600e6} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var before, after runtime.MemStats
				m := workqueue.New(workqueue.Config{})
				runtime.GC()
				runtime.ReadMemStats(&before)
				fill(m, 1e15, "default/some-job-", n, delay)
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/key")
				runtime.KeepAlive(m)
			}
		})
	}
}

// BenchmarkTimer is a delayed add that falls due, its lease and settlement,
// beside a million keys that are delayed for longer.
func BenchmarkTimer(b *testing.B) {
	const batch = 128
	m := workqueue.New(workqueue.Config{})
	now := int64(1e15)
	fill(m, now, "default/later-job-", 1_000_000, 24*time.Hour.Microseconds())
	runtime.GC()
	b.ReportAllocs()
	cpu := cpuTime()
	n := 0
	t := &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 2 * batch}}}
	for b.Loop() {
		now += 1000
		for range batch {
			t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: "default/some-job-" + strconv.Itoa(n%100_000), Delay: int64(1000 + n*7919%20_000)})
			n++
		}
		r := m.Apply(now, t)
		t.Ops = t.Ops[:0]
		for _, l := range r.Leases {
			t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget})
		}
	}
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(n), "cpu-ns/cycle")
}
