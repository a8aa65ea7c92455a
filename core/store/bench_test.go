package store_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

func node(o *store.Object) ([]string, error) {
	v, _ := o.Field("spec.nodeName")
	return v, nil
}

func phase(o *store.Object) ([]string, error) {
	v, _ := o.Field("status.phase")
	return v, nil
}

func labels(o *store.Object) ([]string, error) { return o.Labels().Terms(), nil }

func owners(o *store.Object) ([]string, error) { return o.Owners().UIDs(), nil }

func namespaces(o *store.Object) ([]string, error) { return []string{o.Namespace()}, nil }

func five() map[string]store.IndexFunc {
	return map[string]store.IndexFunc{"namespace": namespaces, "node": node, "owner": owners, "label": labels, "phase": phase}
}

// fleet makes pods of 500 templates and more with six labels each, 30 of them
// on a node, in the order of a log: scattered over namespaces. Payloads are
// shared and small, so that what is measured is the rest.
type fleet struct {
	n       int
	labels  []*store.Labels
	owners  []*store.Owners
	nodes   []*store.Fields
	payload []byte
}

func uid(i, kind int) string {
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", uint32(i)*2654435761, kind, i&0xfff, i>>12&0xfff, i)
}

func newFleet(n int) *fleet {
	f := &fleet{n: n, payload: []byte("{}")}
	templates := max(500, n/100)
	for i := range templates {
		f.labels = append(f.labels, store.NewLabels([]store.Pair{
			{Name: "app.kubernetes.io/name", Value: fmt.Sprint("app-", i/3)},
			{Name: "app.kubernetes.io/instance", Value: fmt.Sprint("release-", i/2)},
			{Name: "pod-template-hash", Value: fmt.Sprintf("%010x", i*7919)},
			{Name: "tier", Value: []string{"web", "db", "cache", "batch"}[i%4]},
			{Name: "team", Value: fmt.Sprint("team-", i%40)},
			{Name: "env", Value: []string{"prod", "stage"}[i%2]},
		}))
		f.owners = append(f.owners, store.NewOwners([]store.Owner{
			{Kind: "ReplicaSet", Name: fmt.Sprintf("app-%d-%010x", i, i*7919), UID: uid(i, 1), Controller: true},
		}))
	}
	for i := range n/30 + 1 {
		f.nodes = append(f.nodes, store.NewFields([]store.Field{
			{Name: "spec.nodeName", Values: []string{fmt.Sprintf("node-%05d.eu-central-1.compute.internal", i)}}, {Name: "status.phase", Values: []string{"Running"}},
		}))
	}
	return f
}

func (f *fleet) pod(i int, seq uint64) *store.Object {
	t := i * 7919 % len(f.labels)
	return store.NewObject(store.ObjectConfig{
		Key: fmt.Sprintf("team-%02d/app-%d-%010x-%05x", t%40, t, t*7919, i), UID: uid(i, 2), RV: fmt.Sprint(seq), Epoch: 1763770000000, Sequence: seq,
		Labels: f.labels[t], Owners: f.owners[t], Fields: f.nodes[i%len(f.nodes)], Payload: f.payload,
	})
}

func (f *fleet) ops() []store.Op {
	ops := make([]store.Op, f.n)
	for i := range ops {
		ops[i].Put = f.pod(i, uint64(i+1))
	}
	return ops
}

// fill applies ops as a cold sync does: in batches, the last one synced.
func fill(s *store.Store, ops []store.Op) {
	for i := 0; i < len(ops); i += 500 {
		end := min(i+500, len(ops))
		st := &store.State{Position: delta.Position{Epoch: 1, Sequence: uint64(end)}, Synced: end == len(ops)}
		s.Apply(store.Batch{Ops: ops[i:end], State: st}, epoch0)
	}
}

func full(n int) *store.Store {
	s := store.New(store.Options{Indexers: five()})
	fill(s, newFleet(n).ops())
	return s
}

var sizes = []int{10_000, 100_000}

func BenchmarkGet(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, f := full(n), newFleet(n)
			keys := make([]string, 1024)
			for i := range keys {
				keys[i] = f.pod(i*7%n, 1).Key()
			}
			b.ReportAllocs()
			defer measureCPU(b)()
			for i := 0; b.Loop(); i++ {
				if s.Snapshot().Get(keys[i&1023]) == nil {
					b.Fatal("no object")
				}
			}
		})
	}
}

func BenchmarkByIndexOf30Hits(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		s := full(n)
		values := make([]string, n/30)
		for i := range values {
			values[i] = fmt.Sprintf("node-%05d.eu-central-1.compute.internal", i)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			defer measureCPU(b)()
			bytes := 0
			for i := 0; b.Loop(); i++ {
				hits, err := s.Snapshot().ByIndex("node", values[i*31%len(values)])
				if err != nil {
					b.Fatal(err)
				}
				for key := range hits.KeysAfter("") {
					bytes += len(key)
				}
			}
			if bytes == 0 {
				b.Fatal("no hits")
			}
		})
	}
}

func BenchmarkApplyOneUpdate(b *testing.B) {
	s := full(100_000)
	defer measureCPU(b)()
	old := s.Snapshot().Get(newFleet(100_000).pod(57, 1).Key())
	b.ReportAllocs()
	for n := uint64(200_000); b.Loop(); n++ {
		o := store.NewObject(store.ObjectConfig{
			Key: old.Key(), UID: old.UID(), RV: old.RV(), Epoch: old.Epoch(), Sequence: n, Labels: old.Labels(), Owners: old.Owners(), Fields: old.Fields(),
		})
		s.Apply(store.Batch{Ops: []store.Op{{Put: o}}}, epoch0)
	}
}

// BenchmarkApplyNewPods adds pods to a full, live store.
func BenchmarkApplyNewPods(b *testing.B) {
	const n = 100_000
	s, f := full(n), newFleet(n)
	b.ReportAllocs()
	defer measureCPU(b)()
	for i := n; b.Loop(); i++ {
		s.Apply(store.Batch{Ops: []store.Op{{Put: f.pod(i, uint64(i+1))}}}, epoch0)
	}
}

func BenchmarkFill100k(b *testing.B) {
	f := newFleet(100_000)
	b.ReportAllocs()
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		ops := f.ops()
		b.StartTimer()
		runtime.GC()
		at := cpuTime()
		fill(store.New(store.Options{Indexers: five()}), ops)
		cpu += cpuTime() - at
	}
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N)/100_000, "cpu-ns/pod")
}

func BenchmarkLoad100k(b *testing.B) {
	f := newFleet(100_000)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		from := store.New(store.Options{Indexers: five()})
		fill(from, f.ops())
		s := store.New(store.Options{Indexers: five()})
		b.StartTimer()
		if err := s.Load(from.Snapshot().Dump(), epoch0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMemory reports what a pod takes beside its payload bytes, and what
// a full collection costs.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s := full(n)
				after := heap()
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/pod")
				b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/float64(n), "objects/pod")
				b.ReportMetric(float64(s.Snapshot().Memory()-s.Snapshot().StoredBytes())/float64(n), "estimated-B/pod")
				cpu, began := cpuTime(), time.Now()
				for range 5 {
					runtime.GC()
				}
				b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/5000, "ms-CPU/GC")
				b.ReportMetric(float64(time.Since(began).Microseconds())/5000, "ms/GC")
				runtime.KeepAlive(s)
			}
		})
	}
}

func heap() runtime.MemStats {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m
}

// measureCPU reports the process's CPU time per operation, which a busy machine
// stretches less than the time on the clock.
func measureCPU(b *testing.B) func() {
	b.Helper()
	runtime.GC()
	cpu := cpuTime()
	return func() { b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBuild declares a label index on a full, live store, and reports for
// how long a writer is held up at a time.
func BenchmarkBuild100k(b *testing.B) {
	s := full(100_000)
	for b.Loop() {
		if err := s.AddIndexers(map[string]store.IndexFunc{"again": labels}); err != nil {
			b.Fatal(err)
		}
		cpu, steps := cpuTime(), 0
		for s.Step(512) {
			steps++
		}
		b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/1000/float64(steps), "ms-CPU/chunk")
		if err := s.RemoveIndexers("again"); err != nil {
			b.Fatal(err)
		}
	}
}
