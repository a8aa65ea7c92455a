package devcluster_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/deltaplane/deltaplane/internal/devcluster"
)

func BenchmarkCreatePod(b *testing.B) {
	for _, dir := range []string{"", "wal"} {
		b.Run("dir="+dir, func(b *testing.B) {
			cfg := devcluster.Config{}
			if dir != "" {
				cfg.DataDir = b.TempDir()
			}
			c := idle(b, cfg)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				must(b, c, http.MethodPost, pods, pod(fmt.Sprintf("p-%d", i), nil, nil))
				i++
			}
		})
	}
}

func BenchmarkPatchPod(b *testing.B) {
	c := idle(b, devcluster.Config{})
	must(b, c, http.MethodPost, pods, pod("p", nil, nil))
	var n atomic.Int64
	b.ReportAllocs()
	for b.Loop() {
		must(b, c, http.MethodPatch, pods+"/p", fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n.Add(1)))
	}
}

func BenchmarkListPods(b *testing.B) {
	c := idle(b, devcluster.Config{})
	for i := range 5000 {
		must(b, c, http.MethodPost, pods, pod(fmt.Sprintf("p-%d", i), nil, nil))
	}
	b.ReportAllocs()
	for b.Loop() {
		must(b, c, http.MethodGet, pods+"?limit=500", nil)
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		idle(b, devcluster.Config{})
	}
}
