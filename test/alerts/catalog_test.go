package alerts

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

const root = "../.."

// targetLabels are those that a target has, by podmonitor.yaml or by Prometheus.
var targetLabels = []string{"job", "component", "namespace", "pod", "instance"}

// catalog is the metrics there are, with their labels.
type catalog map[string][]string

var listed = regexp.MustCompile(`^([a-z0-9_]+)\{(.*)\}\{(.*)\}$`)

// metrics reads the lists that the services' own tests keep true.
func metrics(t *testing.T) catalog {
	t.Helper()
	c := catalog{
		"up":                            nil,
		"ALERTS":                        {"alertname", "alertstate", "severity"},
		"process_resident_memory_bytes": nil,
		"process_cpu_seconds_total":     nil,
		"go_goroutines":                 nil,
	}
	var files []string
	for _, pattern := range []string{"services/*/testdata/metrics.txt", "internal/*/testdata/metrics.txt"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 7 {
		t.Fatalf("there are %d lists of metrics: %v", len(files), files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			m := listed.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				t.Fatalf("%s: not understood: %q", file, line)
			}
			c[m[1]] = append(c[m[1]], strings.Split(m[3], ",")...)
		}
	}
	return c
}

// of are the labels of a series by its name.
func (c catalog) of(name string) ([]string, bool) {
	if l, ok := c[name]; ok {
		return l, true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			if l, ok := c[base]; ok {
				return append([]string{"le"}, l...), true
			}
		}
	}
	return nil, false
}

// faults says what an expression names that there is not.
func (c catalog) faults(text string) (faults []string) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return []string{err.Error()}
	}
	made := map[string]bool{} // by label_replace
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if call, ok := n.(*parser.Call); ok && call.Func.Name == "label_replace" {
			made[call.Args[1].(*parser.StringLiteral).Val] = true
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		var grouped []string
		switch n := n.(type) {
		case *parser.VectorSelector:
			known, ok := c.of(n.Name)
			if !ok {
				faults = append(faults, fmt.Sprintf("there is no metric %q", n.Name))
				return nil
			}
			for _, m := range n.LabelMatchers {
				if m.Name != model.MetricNameLabel && !slices.Contains(known, m.Name) && !slices.Contains(targetLabels, m.Name) {
					faults = append(faults, fmt.Sprintf("%s has no label %q", n.Name, m.Name))
				}
			}
			return nil
		case *parser.AggregateExpr:
			grouped = n.Grouping
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped = n.VectorMatching.MatchingLabels
			}
		default:
			return nil
		}
		below := c.labels(n)
		for _, l := range grouped {
			if !below[l] && !made[l] && !slices.Contains(targetLabels, l) {
				faults = append(faults, fmt.Sprintf("nothing in %q has the label %q", n, l))
			}
		}
		return nil
	})
	return faults
}

// labels are those of all that is selected below.
func (c catalog) labels(below parser.Node) map[string]bool {
	all := map[string]bool{}
	parser.Inspect(below, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			known, _ := c.of(s.Name)
			for _, l := range known {
				all[l] = true
			}
		}
		return nil
	})
	return all
}

func TestTheCatalogFindsWhatThereIsNot(t *testing.T) {
	t.Parallel()
	c := metrics(t)
	for _, row := range []struct {
		expr string
		good bool
	}{
		{`workqueue_depth{name="a"}`, true},
		{`sum by (name, component) (rate(workqueue_queue_duration_seconds_bucket{le="1"}[5m]))`, true},
		{`label_replace(workqueue_depth, "queue", "$1", "name", "(.+)") and on (queue) workqueue_depth`, true},
		{`workqueue_dept`, false},
		{`workqueue_depth_bucket{name="a"} + up{le="1"}`, false},
		{`workqueue_depth{queue="a"}`, false},
		{`sum by (queue) (workqueue_depth)`, false},
		{`up * on (queue) workqueue_depth`, false},
		{`sum by (`, false},
	} {
		if faults := c.faults(row.expr); (len(faults) == 0) != row.good {
			t.Errorf("%s: %v", row.expr, faults)
		}
	}
	if !slices.Contains(slices.Collect(maps.Keys(c)), "deltaplane_gateway_watches") {
		t.Error("the gateway's list is not read")
	}
}
