package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/upstream"
)

func source() upstream.Source {
	ours := upstream.Patch{Old: "cache.New(", New: "newCache("}
	return upstream.Source{
		Module: "sigs.k8s.io/controller-runtime", From: "pkg/cache",
		Files: map[string][]upstream.Patch{
			"cache_test.go": {
				upstream.Moved("cache_test", "caches"), ours,
				{Old: "CacheTest(cache.New,", New: "CacheTest(newCache,"},
				{Old: "NonBlockingGetTest(cache.New,", New: "NonBlockingGetTest(newCache,"},
				{Old: "CacheTestReaderFailOnMissingInformer(cache.New,", New: "CacheTestReaderFailOnMissingInformer(newCache,"},
			},
			"informer_cache_test.go": {upstream.Moved("cache_test", "caches"), ours},
		},
	}
}

// spec is one of ginkgo's report.
type spec struct {
	LeafNodeType            string
	LeafNodeText            string
	ContainerHierarchyTexts []string
	State                   string
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
}

// excused are the specs of a list that need not pass, with the reason.
func excused(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		text := lines.Text()
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		name, reason, ok := strings.Cut(text, " | ")
		if !ok || reason == "" {
			t.Fatalf("%s: %q gives no reason", path, text)
		}
		all[name] = reason
	}
	return all
}

func TestPkgCache(t *testing.T) {
	if os.Getenv("DELTAPLANE_KUBE") != "1" {
		t.Skip("DELTAPLANE_KUBE is not 1: the suite needs a real API server, see `make kube-build`")
	}
	programs, err := filepath.Abs(os.Getenv("DELTAPLANE_KUBE_PROGRAMS"))
	if err != nil {
		t.Fatal(err)
	}
	program := upstream.Compile(t, source(), "caches")
	for _, kind := range []string{"local", "remote"} {
		t.Run(kind, func(t *testing.T) { judge(t, program, programs, kind) })
	}
}

// judge runs the suite on one kind of cache. What comes of each spec must be what the list says.
func judge(t *testing.T, program, programs, kind string) {
	list := filepath.Join("testdata", kind+".txt")
	excuses := excused(t, list)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	report := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.CommandContext(ctx, program, "-test.run", "^TestSource$", "-test.timeout", "14m", "-ginkgo.json-report="+report, "-ginkgo.no-color", "-ginkgo.succinct")
	cmd.Dir = "caches"
	cmd.Env = append(os.Environ(), "DELTAPLANE_CACHE="+kind, "DELTAPLANE_KUBE_PROGRAMS="+programs)
	out, runErr := cmd.CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v: %v\n%s", runErr, err, out)
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	passed, seen := 0, map[string]bool{}
	for _, s := range suites[0].SpecReports {
		name := s.name()
		_, excuse := excuses[name]
		seen[name] = true
		switch {
		case s.LeafNodeType != "It" && s.State != "passed":
			t.Errorf("%s: %s: %s", s.LeafNodeType, s.State, s.Failure.Message)
		case s.LeafNodeType != "It", s.State == "skipped", s.State == "pending":
		case s.State == "passed" && excuse:
			t.Errorf("%s passes: remove it from %s", name, list)
		case s.State == "passed":
			passed++
		case !excuse:
			t.Errorf("%s: %s: %.2000s", name, s.State, s.Failure.Message)
		}
	}
	for name := range excuses {
		if !seen[name] {
			t.Errorf("there is no %q any more: remove it from %s", name, list)
		}
	}
	t.Logf("%d specs pass, %d are excused", passed, len(excuses))
	if passed == 0 {
		t.Errorf("nothing passes: %v\n%.4000s", runErr, out)
	}
}
