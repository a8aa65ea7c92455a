package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// buffer is a bytes.Buffer that may be read while a command writes to it.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// command runs one command line and returns what it printed and its exit code.
func command(ctx context.Context, stdin string, args ...string) (stdout, stderr string, code int) {
	var out, errs buffer
	code = run(ctx, args, streams{In: strings.NewReader(stdin), Out: &out, Err: &errs})
	return out.String(), errs.String(), code
}

// running is an `up` of this process and the flags that reach it.
type running struct {
	ask   []string
	queue []string
	api   []string
	dir   string // its data
	out   *buffer
}

func startUp(t *testing.T, more ...string) *running {
	t.Helper()
	dir := t.TempDir() // before the cleanup that stops what uses it
	ports := embeddedtest.Ports(t, 4)
	index, queue, reflector, api := ports[0], ports[1], ports[2], ports[3]
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{
		ask:   []string{"--index-url", index, "--queue-url", queue, "--reflector-url", reflector},
		queue: []string{"--queue-url", queue}, api: []string{"--api-url", "http://" + api}, dir: dir, out: &buffer{},
	}
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, append([]string{
			"up", "--data-dir", dir, "--no-demo", "--nats-listen", "off", "--api-listen", api,
			"--index-listen", index, "--queue-listen", queue, "--reflector-listen", reflector,
			"--index-admin-listen", "off", "--queue-admin-listen", "off", "--reflector-admin-listen", "off", "--controllers-admin-listen", "off", "--nodes-admin-listen", "off",
			"--gateway-listen", "127.0.0.1:0", "--gateway-admin-listen", "off", "--console-listen", "127.0.0.1:0", "--console-admin-listen", "off",
		}, more...), streams{In: strings.NewReader(""), Out: r.out, Err: r.out})
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != cli.ExitOK {
			t.Errorf("up ended with %d:\n%s", code, r.out)
		}
	})
	until(t, func() bool { return strings.Contains(r.out.String(), "Ctrl-C stops it") })
	return r
}

// until waits for something that another goroutine brings about.
func until(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatal("not within 2 min")
		case <-tick.C:
		}
	}
}

const manifests = `apiVersion: batch/v1
kind: Job
metadata: {name: one, namespace: default, labels: {app: cli}}
spec:
  suspend: true
  template: {spec: {restartPolicy: Never, containers: [{name: main, image: none}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: two}
spec:
  template: {metadata: {labels: {app: other}}, spec: {restartPolicy: Never, containers: [{name: main, image: none}]}}
`

func TestCommandsAgainstARunningUp(t *testing.T) {
	t.Parallel()
	r := startUp(t)
	must := func(stdin string, flags []string, args ...string) string {
		t.Helper()
		out, errs, code := command(t.Context(), stdin, append(args, flags...)...)
		if code != cli.ExitOK {
			t.Fatalf("%v exited with %d: %s", args, code, errs)
		}
		return out
	}
	if out := must(manifests, r.api, "apply", "-f", "-"); out != "job.batch/one created\njob.batch/two created\n" {
		t.Errorf("apply printed %q", out)
	}
	if out := must(manifests, r.api, "apply", "-f", "-"); !strings.HasPrefix(out, "job.batch/one unchanged\n") {
		t.Errorf("the second apply printed %q", out)
	}
	until(t, func() bool {
		out, _, _ := command(t.Context(), "", append([]string{"get", "jobs", "default/two", "-o", "json"}, r.ask...)...)
		return strings.Contains(out, `"Complete"`)
	})

	t.Run("describe tells of any kind, with Events and queues", func(t *testing.T) {
		out := must("", slices.Concat(r.ask, r.api), "describe", "job", "two")
		for _, want := range []string{"Job, batch/v1", "1 succeeded", "Complete ", "SuccessfulCreate", "dev/jobs.v1.batch, serving", "dev/job  default/two"} {
			if !strings.Contains(out, want) {
				t.Errorf("it does not say %q:\n%s", want, out)
			}
		}
		if _, errs, code := command(t.Context(), "", append([]string{"describe", "job", "three"}, r.ask...)...); code != cli.ExitNotFound || !strings.Contains(errs, "looked for in default") {
			t.Errorf("a name that there is not: exit %d, %s", code, errs)
		}
		if out := must("", slices.Concat(r.ask, r.api), "describe", "dev/no", "node-1"); !strings.Contains(out, "Addresses:") || !strings.Contains(out, "MemoryPressure") {
			t.Errorf("a cluster-scoped object:\n%s", out)
		}
	})

	t.Run("get prints tables, keys, names, JSON and YAML", func(t *testing.T) {
		table := must("", r.ask, "get", "jobs")
		if !strings.HasPrefix(table, "NAMESPACE") || !strings.Contains(table, "Suspended") || !strings.Contains(table, "1/1") {
			t.Errorf("table is\n%s", table)
		}
		if out := must("", r.ask, "get", "jobs", "-o", "keys"); out != "default/one\ndefault/two\n" {
			t.Errorf("keys are %q", out)
		}
		if out := must("", r.ask, "get", "jobs", "-l", "app=cli", "-o", "name"); out != "jobs/default/one\n" {
			t.Errorf("names are %q", out)
		}
		var list struct{ Items []map[string]any }
		if err := json.Unmarshal([]byte(must("", r.ask, "get", "jobs", "-o", "json")), &list); err != nil || len(list.Items) != 2 {
			t.Errorf("JSON holds %d items, error %v", len(list.Items), err)
		}
		const columns = "custom-columns=NAME:.metadata.name,KIND:kind,GONE:.metadata.deletionTimestamp"
		if out := must("", r.ask, "get", "jobs", "--sort-by", "{.metadata.name}", "-o", columns); out != "NAME   KIND   GONE\none    Job    <none>\ntwo    Job    <none>\n" {
			t.Errorf("custom columns are\n%s", out)
		}
		if out := must("", r.ask, "get", "jobs", "--sort-by=.metadata.name", "-o", "keys"); out != "default/one\ndefault/two\n" {
			t.Errorf("sorted keys are\n%s", out)
		}
		if out := must("", r.ask, "get", "jobs", "-o", "jsonpath={.items[*].metadata.name}"); out != "one two" {
			t.Errorf("jsonpath of a list printed %q", out)
		}
		if out := must("", r.ask, "get", "jobs", "one", "-o", "jsonpath={.kind}/{.metadata.name}"); out != "Job/one" {
			t.Errorf("jsonpath of an object printed %q", out)
		}
		if out := must("", r.ask, "get", "jobs", "one", "-n", "default", "-o", "yaml"); !strings.Contains(out, "\nkind: Job\n") {
			t.Errorf("YAML is\n%s", out)
		}
	})
	t.Run("indexes answer by value", func(t *testing.T) {
		values := must("", r.ask, "index", "values", "pods", "node")
		lines := strings.Split(strings.TrimSpace(values), "\n")
		if len(lines) != 2 {
			t.Fatalf("values of node are\n%s", values)
		}
		node := strings.Fields(lines[1])[0]
		if out := must("", r.ask, "get", "pods", "--index", "node="+node, "-o", "keys"); !strings.HasPrefix(out, "default/two-") {
			t.Errorf("pods of %s are %q", node, out)
		}
		if out := must("", r.ask, "index", "ls", "pods"); !strings.Contains(out, "\nnamespace ") {
			t.Errorf("indexes are\n%s", out)
		}
	})
	t.Run("indexes are declared and removed", func(t *testing.T) {
		if out := must("", r.ask, "index", "add", "*/pods.v1", "by-image", "--field", "spec.containers[].image", "--wait", "20s"); !strings.Contains(out, "ready") {
			t.Errorf("add printed\n%s", out)
		}
		if out := must("", r.ask, "index", "values", "pods", "by-image"); !strings.Contains(out, "\nnone ") {
			t.Errorf("values of by-image are\n%s", out)
		}
		if out := must("", r.ask, "get", "pods", "--index", "by-image=none", "-o", "keys"); !strings.HasPrefix(out, "default/two-") {
			t.Errorf("pods of the image are %q", out)
		}
		out, errs, code := command(t.Context(), "", append([]string{"index", "add", "pods", "bad", "--cel", "object.nothing", "--wait", "20s"}, r.ask...)...)
		if code != cli.ExitRefused || !strings.Contains(errs, "index bad was declared and fails") || !strings.Contains(errs, "no such key: nothing") {
			t.Errorf("an index that fails: exit %d\n%s\n%s", code, out, errs)
		}
		if out := must("", r.ask, "index", "list", "pods", "-o", "json"); !json.Valid([]byte(out)) || !strings.Contains(out, `"spec.containers[].image"`) {
			t.Errorf("JSON is\n%s", out)
		}
		must("", r.ask, "index", "remove", "pods", "bad")
		must("", r.ask, "index", "remove", "*/pods.v1", "by-image")
		if out := must("", r.ask, "index", "list", "pods"); strings.Contains(out, "by-image") {
			t.Errorf("a removed index shows:\n%s", out)
		}
		if _, errs, code := command(t.Context(), "", append([]string{"index", "add", "pods", "map", "--cel", "{1: 2}"}, r.ask...)...); code == cli.ExitOK || !strings.Contains(errs, "want string or list(string)") {
			t.Errorf("a map-valued expression: %d, %s", code, errs)
		}
		if _, errs, code := command(t.Context(), "", append([]string{"index", "add", "pods", "two", "--cel", "object.a", "--label", "a"}, r.ask...)...); code != cli.ExitUsage {
			t.Errorf("two sources: %d, %s", code, errs)
		}
	})
	t.Run("the queue can be looked into and added to", func(t *testing.T) {
		if out := must("", r.queue, "queue", "add", "dev/job", "default/absent", "--after", "1h"); !strings.Contains(out, "delayed") {
			t.Errorf("add printed %q", out)
		}
		if out := must("", r.queue, "queue", "describe", "dev/job", "default/absent"); !strings.Contains(out, "delayed") {
			t.Errorf("describe printed\n%s", out)
		}
		if out := must("", r.queue, "queue", "items", "dev/job", "--state", "delayed"); !strings.Contains(out, "default/absent") {
			t.Errorf("items are\n%s", out)
		}
		if out := must("", r.queue, "queue", "ls", "-o", "json"); !json.Valid([]byte(out)) {
			t.Errorf("ls -o json printed\n%s", out)
		}
	})
	t.Run("status shows the whole flow", func(t *testing.T) {
		out := must("", r.ask, "status")
		for _, want := range []string{"watching", "serving", "dev/job ", "dev/leases.v1.coordination.k8s.io"} {
			if !strings.Contains(out, want) {
				t.Errorf("status lacks %q:\n%s", want, out)
			}
		}
	})
	t.Run("watch shows the state and then changes", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out, names buffer
		done := make(chan int, 2)
		follow := func(out *buffer, args ...string) {
			done <- run(ctx, append(args, r.ask...), streams{In: strings.NewReader(""), Out: out, Err: out})
		}
		go follow(&out, "watch", "jobs", "-o", "json")
		go follow(&names, "get", "jobs", "-w", "-o", "jsonpath={.metadata.name}")
		until(t, func() bool { return strings.Count(out.String(), "\n") == 2 && strings.Count(names.String(), "\n") == 2 })
		if got := names.String(); got != "one\ntwo\n" && got != "two\none\n" {
			t.Errorf("get -w printed %q", got)
		}
		must(manifests, r.api, "delete", "-f", "-")
		until(t, func() bool {
			return strings.Count(out.String(), `"type":"DELETED"`) == 2 && strings.Count(names.String(), "deleted: default/") == 2
		})
		cancel()
		for range 2 {
			if code := <-done; code != cli.ExitOK {
				t.Errorf("watch ended with %d: %s%s", code, &out, &names)
			}
		}
	})
	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{append([]string{"get", "jobs", "default/none"}, r.ask...), cli.ExitNotFound, "KEY_NOT_FOUND"},
		{append([]string{"get", "gadgets"}, r.ask...), cli.ExitNotFound, "COLLECTION_NOT_FOUND"},
		{append([]string{"get", "pods", "--index", "color=red"}, r.ask...), cli.ExitNotFound, "INDEX_NOT_FOUND"},
		{append([]string{"get", "pods", "-l", "a in ("}, r.ask...), cli.ExitUsage, "label_selector"},
		{append([]string{"get", "pods", "a/b/c"}, r.ask...), cli.ExitUsage, "key"},
		{append([]string{"get", "nodes", "--sort-by", ".spec.none"}, r.ask...), cli.ExitUsage, "--sort-by: no object has .spec.none"},
		{append([]string{"get", "nodes", "--sort-by", ".a["}, r.ask...), cli.ExitUsage, "--sort-by: template"},
		{append([]string{"get", "nodes", "--sort-by", ".a", "-w"}, r.ask...), cli.ExitUsage, "--sort-by excludes --watch"},
		{append([]string{"get", "pods", "--at-least", "x1"}, r.ask...), cli.ExitUsage, "resource_version"},
		{append([]string{"queue", "describe", "none", "a"}, r.queue...), cli.ExitNotFound, "QUEUE_NOT_FOUND"},
		{append([]string{"queue", "add", "dev/job", "a", "--after", "-1s"}, r.queue...), cli.ExitUsage, "delay"},
		{append([]string{"delete", "-f", "-"}, r.api...), cli.ExitUsage, "no objects"},
		{[]string{"get", "pods", "-o", "csv"}, cli.ExitUsage, "--output"},
		{[]string{"get"}, cli.ExitUsage, "arg"},
		{[]string{"frobnicate"}, cli.ExitUsage, "unknown command"},
		{[]string{"get", "pods", "--index-url", "127.0.0.1:1", "--timeout", "300ms"}, cli.ExitUnavailable, ""},
		{[]string{"up", "--skip", "everything"}, cli.ExitUsage, "--skip"},
		{[]string{"serve", "indexer", "--listen", "0.0.0.0:0"}, cli.ExitUsage, "insecure"},
		{[]string{"serve", "reflector", "--kubeconfig", "/does/not/exist"}, cli.ExitUsage, "/does/not/exist"},
	} {
		t.Run(fmt.Sprint(strings.Join(x.args[:min(3, len(x.args))], " "), " exits with ", x.code), func(t *testing.T) {
			_, errs, code := command(t.Context(), "", x.args...)
			if code != x.code || !strings.Contains(errs, x.says) {
				t.Errorf("%v exited with %d, want %d, and said %q, want it to name %q", x.args, code, x.code, errs, x.says)
			}
		})
	}
}

func TestFlagsWinOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "settings.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	environment := map[string]string{}
	// serve reads its flags before it does anything: a wrong log format ends it with a message that
	// shows which one it got.
	format := func(args ...string) (string, int) {
		var errs buffer
		root := newRoot(streams{In: strings.NewReader(""), Out: &errs, Err: &errs})
		root.PersistentPreRunE = cli.ApplySettings(func() []string {
			var all []string
			for name, value := range environment {
				all = append(all, name+"="+value)
			}
			return all
		})
		root.SetArgs(append([]string{"serve", "indexer", "--config", file}, args...))
		err := root.ExecuteContext(t.Context())
		if err == nil {
			t.Fatal("a wrong log format was accepted")
		}
		return err.Error(), cli.ExitCode(err)
	}
	write("log-format: from-file\n")
	if text, code := format(); code != cli.ExitUsage || !strings.Contains(text, "from-file") {
		t.Errorf("file alone: %d %q", code, text)
	}
	environment["DELTAPLANE_LOG_FORMAT"] = "from-environment"
	if text, _ := format(); !strings.Contains(text, "from-environment") {
		t.Errorf("environment over file: %q", text)
	}
	if text, _ := format("--log-format", "from-flag"); !strings.Contains(text, "from-flag") {
		t.Errorf("flag over environment: %q", text)
	}
	write("log-fromat: json\ncollections: [dev/pods.v1]\nlisten: {port: 1}\n")
	environment["DELTAPLANE_TRACE_RATIO"] = "half"
	text, code := format()
	for _, want := range []string{`unknown key "log-fromat"; did you mean "log-format"?`, `"listen" takes a value`, "DELTAPLANE_TRACE_RATIO"} {
		if !strings.Contains(text, want) {
			t.Errorf("faults lack %q: %s", want, text)
		}
	}
	if code != cli.ExitUsage {
		t.Errorf("exit code %d, want %d", code, cli.ExitUsage)
	}
}
