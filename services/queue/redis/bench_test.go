package redis_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// store is a Redis of its own with one queue.
type store struct {
	*testing.B
	client *goredis.Client
	part   engine.Partition
}

func newStore(b *testing.B, cfg workqueue.Config) *store {
	b.Helper()
	srv, err := embedded.StartRedis(context.Background(), filepath.Join(b.TempDir(), "redis"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(srv.Stop)
	e, err := redis.New(redis.Config{URL: srv.URL()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	q, _, err := e.Configure(b.Context(), "dev/job", cfg)
	if err != nil {
		b.Fatal(err)
	}
	c := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
	b.Cleanup(func() { _ = c.Close() })
	return &store{B: b, client: c, part: q.Partitions()[0]}
}

func (s *store) apply(t *workqueue.Transaction) *workqueue.Result {
	r, err := s.part.Apply(s.Context(), t)
	if err != nil {
		s.Fatal(err)
	}
	return r
}

// loop is transactions as a dispatcher makes them with so many cycles under way: some
// streams add, others settle what they got two transactions ago, and all take.
type loop struct {
	s        *store
	batch    int
	add      func(op *workqueue.Op)
	read     *workqueue.More // what settlements carry
	tx       workqueue.Transaction
	next     int
	held     [2][]workqueue.Lease
	finished int
}

func newLoop(s *store, inFlight int) *loop { return &loop{s: s, batch: max(1, inFlight/6)} }

const streams = 8

func (l *loop) step() {
	t := &l.tx
	t.Ops, t.Takes = t.Ops[:0], t.Takes[:0]
	ended := l.held[0]
	l.finished += len(ended)
	for i := 0; i < max(l.batch, len(ended)); i += streams {
		for range min(streams, l.batch-i) {
			l.next++
			t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: fmt.Sprintf("default/some-job-%07d", l.next), Level: workqueue.Level(0)})
			if l.add != nil {
				l.add(&t.Ops[len(t.Ops)-1])
			}
		}
		for j := i; j < min(i+streams, len(ended)); j++ {
			t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: ended[j].Key, Token: ended[j].Token, Outcome: workqueue.Forget, More: l.read})
		}
	}
	for i := range min(streams, l.batch) {
		t.Takes = append(t.Takes, workqueue.Take{Holder: "session-of-a-worker-" + strconv.Itoa(i), Max: 1 + l.batch/streams})
	}
	l.held[0], l.held[1] = l.held[1], l.s.apply(t).Leases
}

// run does cycles and reports Redis' own processor time for one, which is
// steadier than the rate.
func (l *loop) run() {
	for range 10 {
		l.step()
	}
	l.finished = 0
	before := l.s.cpu()
	l.s.ResetTimer()
	for l.finished < l.s.N {
		l.step()
	}
	l.s.StopTimer()
	l.s.ReportMetric((l.s.cpu()-before)/float64(l.finished)*1e6, "redis-us/cycle")
	l.s.ReportMetric(float64(l.finished)/l.s.Elapsed().Seconds(), "cycles/s")
}

// BenchmarkTransaction is whole cycles by a bare engine.
func BenchmarkTransaction(b *testing.B) {
	for _, inFlight := range []int{1, 16, 256, 512, 1024} {
		b.Run(strconv.Itoa(inFlight), func(b *testing.B) { newLoop(newStore(b, workqueue.Config{}), inFlight).run() })
	}
}

// BenchmarkTransactionFeatures is the same where keys carry what they may.
func BenchmarkTransactionFeatures(b *testing.B) {
	for name, add := range map[string]func(*workqueue.Op){
		"priority": func(op *workqueue.Op) { op.Level = uint8(len(op.Key)+int(op.Key[len(op.Key)-1])) % workqueue.Levels },
		"trace":    func(op *workqueue.Op) { op.Trace = trace },
		"barrier":  func(op *workqueue.Op) { op.More = &workqueue.More{Barrier: barrier} },
		"limited":  func(op *workqueue.Op) { op.Limited = true },
		"everything": func(op *workqueue.Op) {
			op.Level, op.Trace, op.More = op.Key[len(op.Key)-1]%workqueue.Levels, trace, &workqueue.More{Barrier: barrier}
		},
	} {
		b.Run(name, func(b *testing.B) {
			cfg := workqueue.Config{}
			if name == "limited" {
				cfg.Limiter = noDelay()
			}
			l := newLoop(newStore(b, cfg), 256)
			l.add = add
			if name == "barrier" || name == "everything" {
				l.read = &workqueue.More{Barrier: barrier}
			}
			l.run()
		})
	}
}

// cpu is the processor time Redis has used, in seconds.
func (s *store) cpu() float64 {
	s.Helper()
	info, err := s.client.Info(context.Background(), "cpu").Result()
	if err != nil {
		s.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(info) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				s.Fatal(err)
			}
			sum += f
		}
	}
	return sum
}

// BenchmarkBacklog is cycles with a million keys ready and a million delayed.
// It also reports the longest script and command in microseconds.
func BenchmarkBacklog(b *testing.B) {
	for _, backlog := range []int{0, 1000, 1_000_000} {
		b.Run(strconv.Itoa(backlog), func(b *testing.B) {
			s := newStore(b, workqueue.Config{})
			if err := s.client.ConfigSet(b.Context(), "slowlog-log-slower-than", "1500").Err(); err != nil {
				b.Fatal(err)
			}
			l := newLoop(s, 256)
			const batch = 250
			for i := 0; i < backlog; i += batch {
				var t workqueue.Transaction
				for j := range batch {
					t.Ops = append(t.Ops,
						workqueue.Op{Kind: workqueue.OpAdd, Key: fmt.Sprintf("default/old-job-%07d", i+j), Level: workqueue.Level(0)},
						workqueue.Op{Kind: workqueue.OpAdd, Key: fmt.Sprintf("default/far-job-%07d", i+j), Level: workqueue.Level(0), Delay: 3600e6 + int64(i+j)*1000})
				}
				s.apply(&t)
			}
			l.run()
			slow, err := s.client.SlowLogGet(b.Context(), -1).Result()
			if err != nil {
				b.Fatal(err)
			}
			longest := time.Duration(0)
			for _, e := range slow {
				longest = max(longest, e.Duration)
			}
			b.ReportMetric(float64(longest.Microseconds()), "longest-us")
		})
	}
}

// BenchmarkAudit is transactions that audit a queue of 100,000 keys, a thousand of them
// held: Redis' own processor time for one, where nothing is wrong and where the
// numbers do not agree.
func BenchmarkAudit(b *testing.B) {
	for _, name := range []string{"right", "wrong"} {
		b.Run(name, func(b *testing.B) {
			s := newStore(b, workqueue.Config{LeaseFor: time.Hour})
			for i := range 100 {
				t := workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 10}}}
				for j := range 1000 {
					t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: fmt.Sprintf("default/some-job-%07d", 1000*i+j), Level: workqueue.Level(0)})
				}
				s.apply(&t)
			}
			at, n := int64(0), 0
			before := s.cpu()
			for b.Loop() {
				if n++; name == "wrong" { // the audit puts the count right
					stray := goredis.Z{Score: 4e15, Member: "stray" + strconv.Itoa(n)}
					if err := s.client.ZAdd(b.Context(), "dp:{dev/job/0}:lease", stray).Err(); err != nil {
						b.Fatal(err)
					}
				}
				at = s.apply(&workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAudit, Count: int(at)}}}).Replies[0].Next
			}
			b.ReportMetric((s.cpu()-before)/float64(b.N)*1e6, "redis-us/audit")
		})
	}
}
