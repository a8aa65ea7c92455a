// Package goldentest compares what users see of this project with files in its tests' testdata, so
// that nothing they rely on changes unnoticed. DELTAPLANE_GOLDEN=write rewrites the files.
package goldentest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// Compare fails the test when got differs from the file testdata/name of the test's package.
func Compare(t testing.TB, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("DELTAPLANE_GOLDEN") == "write" {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s differs (-file +now); DELTAPLANE_GOLDEN=write rewrites it:\n%s", file, diff)
	}
}

var described = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: ".*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// Metrics fails the test when the metrics of a registry differ from the file testdata/name.
func Metrics(t testing.TB, name string, registry *prometheus.Registry) {
	t.Helper()
	Compare(t, name, strings.Join(Described(t, registry), ""))
}

// Described are a registry's metrics, a sorted line each, with constant and variable labels.
// Those of the Go runtime and of the process are left out.
func Described(t testing.TB, registry *prometheus.Registry) []string {
	t.Helper()
	ch := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(ch)
		close(ch)
	}()
	var lines []string
	for d := range ch {
		switch m := described.FindStringSubmatch(d.String()); {
		case m == nil:
			t.Errorf("not understood: %s", d)
		case !strings.HasPrefix(m[1], "go_") && !strings.HasPrefix(m[1], "process_"):
			lines = append(lines, fmt.Sprintf("%s{%s}{%s}\n", m[1], m[2], m[3]))
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
