package store_test

import (
	"fmt"
	"testing"

	"github.com/deltaplane/deltaplane/core/store"
)

func node(o *store.Object) ([]string, error) {
	v, _ := o.Field("spec.nodeName")
	return v, nil
}

func labels(o *store.Object) ([]string, error) {
	return o.Labels().Terms(), nil
}

func namespaces(o *store.Object) ([]string, error) { return []string{o.Namespace()}, nil }

func pods(n int) []store.Op {
	ops := make([]store.Op, n)
	payload := make([]byte, 512)
	sets := make([]*store.Labels, 500)
	for i := range sets {
		sets[i] = store.NewLabels([]store.Pair{{Name: "app", Value: fmt.Sprint("app-", i)}, {Name: "tier", Value: "web"}})
	}
	nodes := make([]*store.Fields, n/30+1)
	for i := range nodes {
		nodes[i] = store.NewFields([]store.Field{{Name: "spec.nodeName", Values: []string{fmt.Sprintf("node-%d", i)}}})
	}
	for i := range ops {
		ops[i].Put = store.NewObject(store.ObjectConfig{
			Key: fmt.Sprintf("ns-%d/pod-%06d", i%50, i), UID: fmt.Sprint(i), RV: fmt.Sprint(i), Epoch: 1, Sequence: uint64(i + 1),
			Fields:  nodes[i%len(nodes)],
			Labels:  sets[i%500],
			Payload: payload,
		})
	}
	return ops
}

func full(b *testing.B, n int) *store.Store {
	b.Helper()
	s := store.New(store.Options{Indexers: map[string]store.IndexFunc{"namespace": namespaces, "node": node, "label": labels}})
	s.Apply(store.Batch{Ops: pods(n), State: &store.State{Synced: true}}, epoch0)
	return s
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := full(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if s.Snapshot().Get("ns-7/pod-000057") == nil {
					b.Fatal("no object")
				}
			}
		})
	}
}

func BenchmarkByIndexOf30Hits(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := full(b, n)
			b.ReportAllocs()
			for b.Loop() {
				hits, err := s.Snapshot().ByIndex("node", "node-7")
				if err != nil {
					b.Fatal(err)
				}
				bytes := 0
				for o := range hits.After("") {
					bytes += len(o.Key())
				}
				if bytes == 0 {
					b.Fatal("no hits")
				}
			}
		})
	}
}

func BenchmarkApplyOneUpdate(b *testing.B) {
	s := full(b, 100_000)
	old := s.Snapshot().Get("ns-7/pod-000057")
	b.ReportAllocs()
	for n := uint64(200_000); b.Loop(); n++ {
		o := store.NewObject(store.ObjectConfig{
			Key: old.Key(), UID: old.UID(), RV: old.RV(), Epoch: 1, Sequence: n, Labels: old.Labels(), Fields: old.Fields(),
		})
		s.Apply(store.Batch{Ops: []store.Op{{Put: o}}}, epoch0)
	}
}

func BenchmarkFill100k(b *testing.B) {
	ops := pods(100_000)
	b.ReportAllocs()
	for b.Loop() {
		s := store.New(store.Options{Indexers: map[string]store.IndexFunc{"namespace": namespaces, "node": node, "label": labels}})
		for i := 0; i < len(ops); i += 500 {
			s.Apply(store.Batch{Ops: ops[i:min(i+500, len(ops))]}, epoch0)
		}
	}
}
