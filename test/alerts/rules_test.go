package alerts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"
)

const (
	monitoring = root + "/deploy/monitoring/"
	rulesFile  = monitoring + "rules.yaml"
	casesFile  = "testdata/alerts.yaml"
)

type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func (r rule) String() string {
	if r.Record != "" {
		return r.Record
	}
	return r.Alert + " " + r.Labels["severity"]
}

type rules struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func allRules(t *testing.T) (all []rule) {
	t.Helper()
	var file rules
	read(t, rulesFile, &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 20 {
		t.Fatalf("%s has %d rules", rulesFile, len(all))
	}
	return all
}

func TestRulesNameOnlyWhatTheServicesShow(t *testing.T) {
	t.Parallel()
	c := metrics(t)
	for _, r := range allRules(t) {
		for _, fault := range c.faults(r.Expr) {
			t.Errorf("%s: %s", r, fault)
		}
		if r.Record != "" {
			c[r.Record] = targetLabels
		}
	}
}

// promtool runs it as this module has it, without what discovers targets: that is most of its size.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "promtool"}, args...)...)
	cmd.Env = append(os.Environ(), "GOFLAGS=-tags=remove_all_sd")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestEveryAlertFiresWhenItShouldAndNotBefore(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rulesFile)
	promtool(t, "test", "rules", casesFile)
}

type cases struct {
	Tests []struct {
		Name   string
		Checks []struct {
			Expr    string
			Samples []struct{ Labels string } `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	}
}

var named = regexp.MustCompile(`\$labels\.(\w+)`)

func TestEveryAlertHasACaseThatFiresAndOneThatNearlyDoes(t *testing.T) {
	t.Parallel()
	var file cases
	read(t, casesFile, &file)
	for _, r := range allRules(t) {
		if r.Alert == "" {
			continue
		}
		fires, nearly, has := 0, 0, ""
		asks := fmt.Sprintf(`ALERTS{alertname=%q, severity=%q, alertstate="firing"}`, r.Alert, r.Labels["severity"])
		for _, c := range file.Tests {
			for _, check := range c.Checks {
				switch {
				case check.Expr != asks:
				case strings.HasPrefix(c.Name, r.String()+" does not fire: ") && len(check.Samples) == 0:
					nearly++
				case c.Name == r.String()+" fires" && len(check.Samples) == 1:
					fires++
					has += check.Samples[0].Labels
				default:
					t.Errorf("the case %q expects %d alerts", c.Name, len(check.Samples))
				}
			}
		}
		if fires == 0 || nearly == 0 {
			t.Errorf("%s: %d cases fire and %d nearly do", r, fires, nearly)
		}
		for _, l := range named.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
			if !strings.Contains(has, l[1]+`="`) {
				t.Errorf("%s: its text names %s, and the alert has %s", r, l[1], has)
			}
		}
	}
}

// runbookParts are what a page has to say.
var runbookParts = []string{"## What it means", "## What to look at", "## What to do"}

func TestEveryAlertHasAPageAndEveryPageAnAlert(t *testing.T) {
	t.Parallel()
	said := map[string][]string{}
	for _, r := range allRules(t) {
		if r.Alert == "" {
			continue
		}
		severity, page := r.Labels["severity"], "docs/runbooks/"+r.Alert+".md"
		if severity != "page" && severity != "ticket" || r.For == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: an alert has a severity, a time that it waits, a summary and a description", r)
		}
		if r.Annotations["runbook_url"] != page {
			t.Errorf("%s: runbook_url is %q, want %q", r, r.Annotations["runbook_url"], page)
		}
		said[page] = append(said[page], severity)
	}
	pages, err := filepath.Glob(root + "/docs/runbooks/Deltaplane*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range pages {
		page := strings.TrimPrefix(path, root+"/")
		severities, ok := said[page]
		if !ok {
			t.Errorf("%s is of no alert", page)
			continue
		}
		delete(said, page)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		for _, part := range append(runbookParts, "# "+name+"\n", "Severity: "+strings.Join(severities, ", or ")) {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s does not have %q", page, part)
			}
		}
	}
	for page := range said {
		t.Errorf("%s is missing", page)
	}
	table, err := os.ReadFile(root + "/docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range allRules(t) {
		if r.Alert != "" && !strings.Contains(string(table), "["+r.Alert+"](runbooks/"+r.Alert+".md)") {
			t.Errorf("docs/monitoring.md does not list %s", r.Alert)
		}
	}
}

var metricWord = regexp.MustCompile("`((?:deltaplane|grpc|workqueue|controller_runtime|reflector|job_controller|apiserver|node_collector|process)_[a-z0-9_]+)")

func TestPagesNameOnlyMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	c := metrics(t)
	pages, err := filepath.Glob(root + "/docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, root+"/docs/monitoring.md", root+"/docs/operations.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range metricWord.FindAllStringSubmatch(string(text), -1) {
			if _, ok := c.of(m[1]); !ok && !strings.HasSuffix(m[1], "_") {
				t.Errorf("%s: there is no metric %s", page, m[1])
			}
		}
	}
}

func TestTheRuleOfTheOperatorIsMadeOfTheRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	_, groups, _ := strings.Cut(string(text), "\ngroups:\n")
	var made strings.Builder
	made.WriteString(`# Made of rules.yaml by test/alerts.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: deltaplane
  labels:
    app.kubernetes.io/name: deltaplane
spec:
  groups:
`)
	for line := range strings.Lines(groups) {
		if line != "\n" {
			made.WriteString("  ")
		}
		made.WriteString(line)
	}
	golden(t, monitoring+"prometheusrule.yaml", made.String())
	var from rules
	var of struct{ Spec rules }
	read(t, rulesFile, &from)
	read(t, monitoring+"prometheusrule.yaml", &of)
	if diff := cmp.Diff(from, of.Spec); diff != "" {
		t.Errorf("prometheusrule.yaml has other rules: %s", diff)
	}
}

// golden compares a file with what it is made of.
func golden(t *testing.T, path, want string) {
	t.Helper()
	if os.Getenv("DELTAPLANE_GOLDEN") == "write" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(got), "\n"), strings.Split(want, "\n")); diff != "" {
		t.Errorf("%s differs (-file +made); DELTAPLANE_GOLDEN=write rewrites it:\n%s", path, diff)
	}
}

func TestTheManifestsNameFilesAndLabelsThatThereAre(t *testing.T) {
	t.Parallel()
	var k struct {
		Resources  []string
		Generators []struct{ Files []string } `yaml:"configMapGenerator"`
	}
	read(t, monitoring+"kustomization.yaml", &k)
	files := slices.Clone(k.Resources)
	for _, g := range k.Generators {
		files = append(files, g.Files...)
	}
	for _, file := range files {
		if _, err := os.Stat(monitoring + file); err != nil {
			t.Error(err)
		}
	}
	var monitor monitoringv1.PodMonitor
	strictly(t, "podmonitor.yaml", &monitor)
	const name = "app.kubernetes.io/name"
	spec := monitor.Spec
	if spec.JobLabel != name || spec.Selector.MatchLabels[name] != "deltaplane" || spec.ScrapeClassicHistograms == nil || !*spec.ScrapeClassicHistograms {
		t.Errorf("the monitor is %+v", spec)
	}
	if len(spec.PodMetricsEndpoints) != 1 {
		t.Fatalf("the monitor scrapes %+v", spec.PodMetricsEndpoints)
	}
	e := spec.PodMetricsEndpoints[0]
	if e.Port == nil || *e.Port != "admin" || e.Path != "/metrics" || !e.HonorLabels || len(e.RelabelConfigs) != 1 || e.RelabelConfigs[0].TargetLabel != "component" {
		t.Errorf("the monitor scrapes %+v", e)
	}
	strictly(t, "prometheusrule.yaml", &monitoringv1.PrometheusRule{})
}

// strictly reads an object of the operator, which may have no field that it does not know.
func strictly(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(monitoring + file)
	if err != nil {
		t.Fatal(err)
	}
	if err := k8syaml.UnmarshalStrict(text, into); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}
