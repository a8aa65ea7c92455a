package upstream

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/upstream"
)

const module = "sigs.k8s.io/controller-runtime"

// imports has a file import packages.
func imports(paths ...string) upstream.Patch {
	p := upstream.Patch{Old: "\nimport (\n", New: "\nimport (\n"}
	for _, path := range paths {
		p.New += "\t\"" + path + "\"\n"
	}
	return p
}

// swaptest has what is called in place of constructors.
const swaptest = "github.com/deltaplane/deltaplane/client/controllerruntime/upstream/swaptest"

func cacheSource() upstream.Source {
	own, ours := upstream.Moved("cache_test", "caches"), upstream.Patch{Old: "cache.New(", New: "swaptest.NewCache("}
	return upstream.Source{
		Module: module, From: "pkg/cache",
		Files: map[string][]upstream.Patch{
			"cache_test.go": {
				own, imports(swaptest), ours,
				{Old: "CacheTest(cache.New,", New: "CacheTest(swaptest.NewCache,"},
				{Old: "NonBlockingGetTest(cache.New,", New: "NonBlockingGetTest(swaptest.NewCache,"},
				{Old: "CacheTestReaderFailOnMissingInformer(cache.New,", New: "CacheTestReaderFailOnMissingInformer(swaptest.NewCache,"},
			},
			"informer_cache_test.go": {own, imports(swaptest), ours},
		},
	}
}

func TestPkgCache(t *testing.T) {
	needsPrograms(t)
	program := upstream.Compile(t, cacheSource(), "caches")
	for _, kind := range []string{"local", "remote", "gateway"} {
		t.Run(kind, func(t *testing.T) {
			suite{program: program, dir: "caches", list: "testdata/" + kind + ".txt", env: []string{"DELTAPLANE_CACHE=" + kind}}.run(t)
		})
	}
}
