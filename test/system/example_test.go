package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// exampleModule is a controller as somebody else would write it, a module of its own, with the
// folder of its command.
type exampleModule struct{ dir, command string }

var (
	goController = exampleModule{"../../examples/go-controller", "."}
	operator     = exampleModule{"../../examples/kubebuilder-operator", "./cmd"}
)

const sitesPath = "/apis/example.com/v1/namespaces/default/sites"

func TestTheExampleControllerInThreeReplicas(t *testing.T) {
	if os.Getenv("DELTAPLANE_EXAMPLE") != "1" {
		t.Skip("DELTAPLANE_EXAMPLE is not 1: `make example-test` builds the example and runs this")
	}
	t.Parallel()
	for _, source := range []string{"index", "log"} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			testExample(t, goController, newUp(t, ""), source == "log")
		})
	}
}

func TestTheExampleOperatorInThreeReplicas(t *testing.T) {
	if os.Getenv("DELTAPLANE_EXAMPLE") != "1" {
		t.Skip("DELTAPLANE_EXAMPLE is not 1: `make example-test` builds the example and runs this")
	}
	t.Parallel()
	testExample(t, operator, newUp(t, ""), false)
}

func TestRealTheExampleOperatorInThreeReplicas(t *testing.T) {
	if os.Getenv("DELTAPLANE_EXAMPLE") != "1" {
		t.Skip("DELTAPLANE_EXAMPLE is not 1: `make example-test` builds the example and runs this")
	}
	t.Parallel()
	k := startKube(t, "--nodes", "0")
	testExample(t, operator, newUp(t, k.kubeconfig), false)
}

func TestRealTheExampleControllerInThreeReplicas(t *testing.T) {
	if os.Getenv("DELTAPLANE_EXAMPLE") != "1" {
		t.Skip("DELTAPLANE_EXAMPLE is not 1: `make example-test` builds the example and runs this")
	}
	t.Parallel()
	k := startKube(t, "--nodes", "0")
	testExample(t, goController, newUp(t, k.kubeconfig), false)
}

// site is the custom resource as far as this test looks at it.
type site struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct{ Title string }
	Status            struct {
		ObservedGeneration int64
		Page               string
	}
}

// Three replicas, on the index or on the log, publish sites while these are created, changed and
// deleted. One replica is killed and one stopped; both are started again.
func testExample(t *testing.T, module exampleModule, u *upTarget, onLog bool) {
	const n = 60
	e := &example{upTarget: u, x: u.target(), binary: filepath.Join(t.TempDir(), filepath.Base(module.dir))}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", e.binary, module.command)
	cmd.Dir = module.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	kubeconfig := u.kubeconfig
	if kubeconfig == "" {
		kubeconfig = kubeconfigOf(t, "http://"+u.ports["api"])
	} else {
		e.x.API = loadKubeconfig(t, kubeconfig)
	}
	e.args = []string{"-kubeconfig", kubeconfig}
	e.args = append(e.args, "-v", "-index", u.ports["index"], "-queue", u.ports["queue"])
	if onLog {
		e.args = append(e.args, "-nats", "nats://"+u.ports["nats"])
	}
	u.start(t, "up", u.upArgs()...)
	e.install(t)
	for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
		e.replica(t, name)
	}

	e.each(t, n, e.create)
	e.converged(t, n, "first") // so that each has its finalizer
	e.each(t, n, e.retitle("second"))
	e.end(t, "replica-1", syscall.SIGKILL)
	e.each(t, n, e.retitle("third"))
	e.end(t, "replica-2", syscall.SIGTERM)
	e.each(t, n, e.retitle("fourth"))
	e.replica(t, "replica-4")
	e.each(t, n/2, e.delete)
	e.replica(t, "replica-5")
	e.each(t, n, e.retitle("fifth"))
	e.converged(t, n-n/2, "fifth")
	e.archived(t, n/2, "third", "fourth", "fifth")
	for _, name := range []string{"replica-3", "replica-4", "replica-5"} {
		e.end(t, name, syscall.SIGTERM)
	}
	e.judge(t, n)
}

type example struct {
	*upTarget

	x      *Target
	binary string
	args   []string
	runs   []exampleRun
}

func (e *example) replica(t *testing.T, name string) { e.startBuild(t, e.binary, name, e.args...) }

// kubeconfigOf is a kubeconfig file of an API server that needs no credentials.
func kubeconfigOf(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "dev", "clusters": [{"name": "dev", "cluster": {"server": %q}}],
		"contexts": [{"name": "dev", "context": {"cluster": "dev"}}]}`, url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// install makes the API server serve sites, and Deltaplane mirror them.
func (e *example) install(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goController.dir, "crd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	const crdsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	eventually(t, time.Minute, "the resource is defined", func(ctx context.Context) error {
		err := e.x.API.create(ctx, crdsPath, crd, nil)
		if isStatus(err, http.StatusConflict) {
			err = nil
		}
		return err
	})
	eventually(t, time.Minute, "the resource is served", func(ctx context.Context) error {
		return e.x.API.get(ctx, sitesPath, nil)
	})
	for _, resource := range []string{"sites.example.com", "configmaps"} {
		eventually(t, time.Minute, resource+" are mirrored", func(ctx context.Context) error {
			_, err := e.x.reflector(t).AddReflection(ctx, &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: resource}})
			return err
		})
	}
}

// each does something to sites, a few at a time.
func (e *example) each(t *testing.T, n int, do func(ctx context.Context, name string) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for i := range n {
		group.Go(func() error { return do(ctx, "site-"+strconv.Itoa(i)) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

func (e *example) create(ctx context.Context, name string) error {
	return e.x.API.create(ctx, sitesPath, map[string]any{
		"apiVersion": "example.com/v1", "kind": "Site", "metadata": map[string]any{"name": name}, "spec": map[string]any{"title": "first"},
	}, nil)
}

// retitle changes sites that were not deleted.
func (e *example) retitle(title string) func(ctx context.Context, name string) error {
	return func(ctx context.Context, name string) error {
		err := e.x.API.merge(ctx, sitesPath+"/"+name, map[string]any{"spec": map[string]any{"title": title}})
		if isStatus(err, http.StatusNotFound) {
			return nil
		}
		return err
	}
}

func (e *example) delete(ctx context.Context, name string) error {
	return e.x.API.delete(ctx, sitesPath+"/"+name, "Background")
}

// end ends a replica and keeps what it did.
func (e *example) end(t *testing.T, name string, signal syscall.Signal) {
	t.Helper()
	p := e.processes[name]
	e.stop(t, name, signal)
	ended := time.Now()
	runs, err := runsOf(name, p.out.Bytes(), ended)
	if err != nil {
		t.Fatal(err)
	}
	e.runs = append(e.runs, runs...)
}

// converged waits until there are n sites that are published as they are.
func (e *example) converged(t *testing.T, n int, title string) {
	t.Helper()
	eventually(t, 2*time.Minute, "everything is published", func(ctx context.Context) error {
		var all struct{ Items []site }
		if err := e.x.API.get(ctx, sitesPath, &all); err != nil {
			return err
		}
		if len(all.Items) != n {
			return fmt.Errorf("there are %d sites, want %d", len(all.Items), n)
		}
		for _, s := range all.Items {
			if s.Status.ObservedGeneration != s.Generation || s.Status.Page != s.Name {
				return fmt.Errorf("%s is of generation %d, published: %+v", s.Name, s.Generation, s.Status)
			}
			if err := e.published(ctx, s.Name, title); err != nil {
				return err
			}
		}
		return nil
	})
}

// archived checks what the n first sites left.
func (e *example) archived(t *testing.T, n int, titles ...string) {
	t.Helper()
	for i := range n {
		if err := e.published(t.Context(), fmt.Sprintf("site-%d-archive", i), titles...); err != nil {
			t.Error(err)
		}
	}
}

func (e *example) published(ctx context.Context, name string, titles ...string) error {
	var page struct{ Data map[string]string }
	if err := e.x.API.get(ctx, configMapsPath+"/"+name, &page); err != nil {
		return err
	}
	if !slices.ContainsFunc(titles, func(title string) bool { return page.Data["index.html"] == "<h1>"+title+"</h1><p></p>" }) {
		return fmt.Errorf("%s shows %q, want one of %q", name, page.Data["index.html"], titles)
	}
	return nil
}

// exampleRun is one reconcile of a replica, as it logged it.
type exampleRun struct {
	replica, key string
	begin, end   time.Time
	ended        bool
	read, wrote  map[string]uint64 // by collection and name: resource versions
}

// runsOf reads the log of a replica that ended at a time.
func runsOf(replica string, log []byte, ended time.Time) ([]exampleRun, error) {
	var runs []exampleRun
	open := map[string]*exampleRun{} // by the name of the site
	for line := range bytes.Lines(log) {
		var l struct {
			Time                                time.Time
			Msg, Key, Collection, Name, Version string
		}
		if err := json.Unmarshal(line, &l); err != nil {
			if bytes.HasSuffix(line, []byte("\n")) {
				return nil, fmt.Errorf("%s logs %q: %w", replica, line, err)
			}
			break // it was killed
		}
		switch l.Msg {
		case "begins":
			open[l.Key] = &exampleRun{replica: replica, key: l.Key, begin: l.Time, read: map[string]uint64{}, wrote: map[string]uint64{}}
		case "ends":
			r := open[l.Key]
			r.end, r.ended = l.Time, true
			runs = append(runs, *r)
			delete(open, l.Key)
		case "read", "wrote":
			r := open["default/"+siteOf(l.Name)]
			version, err := strconv.ParseUint(l.Version, 10, 64)
			if err != nil || r == nil {
				return nil, fmt.Errorf("%s logs %q outside of a run or without a version: %w", replica, line, err)
			}
			seen := r.read
			if l.Msg == "wrote" {
				seen = r.wrote
			}
			seen[l.Collection+" "+l.Name] = version
		}
	}
	for _, r := range open {
		r.end = ended
		runs = append(runs, *r)
	}
	return runs, nil
}

// siteOf is the site that an object is of.
func siteOf(name string) string { return strings.TrimSuffix(name, "-archive") }

// judge compares the runs of each key.
func (e *example) judge(t *testing.T, n int) {
	t.Helper()
	of := map[string][]exampleRun{}
	by := map[string]int{}
	for _, r := range e.runs {
		of[r.key] = append(of[r.key], r)
		by[r.replica]++
	}
	t.Logf("%d runs: %v", len(e.runs), by)
	if len(of) != n {
		t.Errorf("%d keys ran, want %d", len(of), n)
	}
	if len(by) < 4 {
		t.Errorf("runs by replica: %v: too few of them worked", by)
	}
	for key, runs := range of {
		slices.SortFunc(runs, func(a, b exampleRun) int { return a.begin.Compare(b.begin) })
		known := map[string]uint64{}
		for i, r := range runs {
			if i > 0 && r.begin.Before(runs[i-1].end) {
				t.Errorf("%s ran on %s from %v, and on %s until %v", key, r.replica, r.begin, runs[i-1].replica, runs[i-1].end)
			}
			for object, version := range r.read {
				if version < known[object] {
					t.Errorf("%s read %s at %d on %s, and a run before it wrote %d", key, object, version, r.replica, known[object])
				}
			}
			if r.ended { // one that was killed did not tell the queue what it wrote
				for object, version := range r.wrote {
					known[object] = max(known[object], version)
				}
			}
		}
	}
}
