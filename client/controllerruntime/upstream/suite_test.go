package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

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

// needsPrograms skips a test where there is no real API server.
func needsPrograms(t *testing.T) {
	t.Helper()
	if os.Getenv("DELTAPLANE_KUBE") != "1" {
		t.Skip("DELTAPLANE_KUBE is not 1: the suite needs a real API server, see `make kube-build`")
	}
}

// suite is a compiled suite: it runs in a folder, with variables besides those of its environment.
// What comes of each spec, and of each function of the testing package, must be what the list says.
type suite struct {
	program, dir, list string
	env                []string
}

func (s suite) run(t *testing.T) {
	j := judge{list: s.list, excuses: excused(t, s.list), seen: map[string]bool{}}
	e := newEnvironment(t)
	swaps := filepath.Join(t.TempDir(), "swaps")
	if slices.Contains(s.env, "DELTAPLANE_CACHE=gateway") {
		e.kubeconfig = e.gateway
	}
	s.env = slices.Concat(os.Environ(), e.variables(), s.env, []string{"DELTAPLANE_SWAPS=" + swaps, "TMPDIR=" + t.TempDir()}) // envtest leaves files
	s.specs(t, &j)
	s.functions(t, &j)
	for name := range j.excuses {
		if !j.seen[name] {
			t.Errorf("there is no %q any more: remove it from %s", name, s.list)
		}
	}
	made, err := os.ReadFile(swaps)
	if err != nil {
		t.Errorf("the suite uses nothing of Deltaplane: %v", err)
	}
	t.Logf("%d pass, %d are excused; %d caches, managers and queues are of Deltaplane", j.passed, len(j.excuses), len(made))
}

// specs runs those of ginkgo.
func (s suite) specs(t *testing.T, j *judge) {
	report := filepath.Join(t.TempDir(), "report.json")
	out, runErr := s.start(t, 15*time.Minute, "-test.run", "^TestSource$", "-ginkgo.json-report="+report, "-ginkgo.no-color", "-ginkgo.succinct")
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v: %v\n%s", runErr, err, out)
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	for _, s := range suites[0].SpecReports {
		switch {
		case s.LeafNodeType != "It" && s.State != "passed":
			t.Errorf("%s: %s: %s", s.LeafNodeType, s.State, s.Failure.Message)
		case s.LeafNodeType != "It":
		case s.State == "skipped", s.State == "pending":
			j.seen[s.name()] = true
		default:
			j.see(t, s.name(), s.State == "passed", s.State+": "+s.Failure.Message)
		}
	}
	if j.passed == 0 {
		t.Errorf("nothing passes: %v\n%.4000s", runErr, out)
	}
	if len(j.raced) > 0 && j.won == 0 {
		t.Errorf("none of %q passes: %q", racing, j.raced)
	}
}

// functions runs the others, each in a process of its own: a bubble that deadlocks ends it.
func (s suite) functions(t *testing.T, j *judge) {
	names, err := s.start(t, time.Minute, "-test.list", "^Test")
	if err != nil {
		t.Fatalf("%v\n%s", err, names)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if name == "TestSource" {
			continue
		}
		out, err := s.start(t, 2*time.Minute, "-test.run", "^"+name+"$", "-test.v")
		if err == nil && !bytes.Contains(out, []byte("--- PASS: "+name)) {
			err = errors.New("it did not run")
		}
		j.see(t, name, err == nil, string(out))
	}
}

// start runs the program.
func (s suite) start(t *testing.T, limit time.Duration, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, append(args, "-test.timeout="+(limit-10*time.Second).String())...)
	cmd.Dir, cmd.Env = s.dir, s.env
	return cmd.CombinedOutput()
}

// judge knows what was to come of everything.
type judge struct {
	list    string
	excuses map[string]string
	seen    map[string]bool
	passed  int
	won     int      // specs of racing that pass
	raced   []string // those that do not
}

// racing ends the names of specs that race with their own subject: each expects a timeout of an
// informer that it starts with a context that is over, which comes only if the informer has not yet
// synced a moment later. One that is quick, on a machine that is busy, has.
const racing = "should allow for get informer to be cancelled"

// see compares what came of a spec with the list.
func (j *judge) see(t *testing.T, name string, passed bool, text string) {
	t.Helper()
	_, excuse := j.excuses[name]
	j.seen[name] = true
	switch {
	case passed && excuse:
		t.Errorf("%s passes: remove it from %s", name, j.list)
	case passed:
		j.passed++
		if strings.HasSuffix(name, racing) {
			j.won++
		}
	case strings.HasSuffix(name, racing) && strings.Contains(text, "Expected an error to have occurred"):
		j.raced = append(j.raced, name)
		t.Logf("%s: the informer was quicker than the spec", name)
	case !excuse:
		t.Errorf("%s: %.2000s", name, text)
	}
}
