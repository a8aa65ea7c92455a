package kube

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// benchPod is a pod as a kube-apiserver sends it in a watch: two containers, and the managed fields
// of two managers.
func benchPod(b *testing.B) []byte {
	b.Helper()
	raw, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		b.Fatal(err)
	}
	return raw
}

// What every object of a list costs before it is compared with the shadow.
func BenchmarkNormalize(b *testing.B) {
	raw := benchPod(b)
	t := Transform{Hints: map[string]string{"node": "spec.nodeName"}, Labels: []string{"batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"}}
	r := Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := t.Normalize(raw, r); err != nil {
			b.Fatal(err)
		}
	}
}

// What an object of a namespace that is left out costs instead.
func BenchmarkNamespace(b *testing.B) {
	raw := benchPod(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, told := Namespace(raw); !told {
			b.Fatal("not told")
		}
	}
}

// A page of 500 such pods, from the bytes of the connection to the shadow's answer.
func BenchmarkListPage(b *testing.B) {
	raw := benchPod(b)
	var page bytes.Buffer
	page.WriteString(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"10"},"items":[`)
	for i := range 500 {
		if i > 0 {
			page.WriteByte(',')
		}
		page.Write(bytes.Replace(raw, []byte("7h6ft7"), fmt.Appendf(nil, "%06d", i), 1))
	}
	page.WriteString("]}")
	t := Transform{Hints: map[string]string{"node": "spec.nodeName"}}
	r := Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	b.ReportAllocs()
	b.SetBytes(int64(page.Len()))
	for b.Loop() {
		items := 0
		p := pager{begin: func(Page) error { return nil }, item: func(item []byte) error {
			o, err := t.Normalize(item, r)
			if err == nil && o.Hash != 0 {
				items++
			}
			return err
		}}
		if err := p.read(jsonscan.NewReader(bytes.NewReader(page.Bytes()), feedSize)); err != nil || items != 500 {
			b.Fatal(items, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/500, "us/object")
}

func BenchmarkHash(b *testing.B) {
	raw := benchPod(b)
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		delta.Hash(raw)
	}
}
