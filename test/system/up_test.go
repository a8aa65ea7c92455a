package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

func TestUpWithTheDevCluster(t *testing.T) {
	t.Parallel()
	x := startUp(t, "")
	runSuite(t, x)
}

func TestUpAgainstARealAPIServer(t *testing.T) {
	t.Parallel()
	kubeconfig := os.Getenv("DELTAPLANE_KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("DELTAPLANE_KUBECONFIG is not set: `make kube` starts a real API server and prints one")
	}
	embeddedtest.Alone(t, kubeconfig)
	runSuite(t, startUp(t, kubeconfig))
}

// upTarget runs the binary as a user would. To restart one service by itself it is taken out of the
// all-in-one process and run beside it.
type upTarget struct {
	binary     string
	dir        string
	kubeconfig string
	ports      map[string]string
	apart      string // the service that runs by itself, if any
	processes  map[string]*process
}

// process is a running command and its output.
type process struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan struct{}
}

// newUp chooses ports and a data folder; nothing runs yet. Whatever is started is stopped when the
// test ends.
func newUp(t *testing.T, kubeconfig string) *upTarget {
	t.Helper()
	u := &upTarget{
		binary: build(t), dir: t.TempDir(), kubeconfig: kubeconfig, ports: map[string]string{}, processes: map[string]*process{},
	}
	names := []string{
		"index", "queue", "reflector", "nats", "api", "gateway",
		"index-admin", "queue-admin", "reflector-admin", "controllers-admin", "nodes-admin",
	}
	for i, port := range embeddedtest.Ports(t, len(names)) {
		u.ports[names[i]] = port
	}
	t.Cleanup(func() {
		for name, p := range u.processes {
			u.stop(t, name, syscall.SIGTERM)
			if t.Failed() {
				t.Logf("output of %s:\n%s", name, tail(p.out.Bytes(), 20_000))
			}
		}
	})
	return u
}

// target is the deployment as the suite sees it, without Restart and Kill.
func (u *upTarget) target() *Target {
	return &Target{
		Name: "up", Index: u.ports["index"], Queue: u.ports["queue"], Reflector: u.ports["reflector"],
		API: &API{Base: "http://" + u.ports["api"], Client: http.DefaultClient},
	}
}

func startUp(t *testing.T, kubeconfig string) *Target {
	u := newUp(t, kubeconfig)
	x := u.target()
	x.Restart = func(t *testing.T, service string) {
		u.separate(t, service)
		u.stop(t, service, syscall.SIGTERM)
		u.start(t, service, u.serveArgs(service)...)
	}
	x.Kill = func(t *testing.T) {
		for name := range u.processes {
			u.stop(t, name, syscall.SIGKILL)
		}
		u.apart = ""
		u.start(t, "up", u.upArgs()...)
	}
	x.Nodes = kubeconfig == ""
	if kubeconfig != "" {
		x.API = loadKubeconfig(t, kubeconfig)
	}
	u.start(t, "up", u.upArgs()...)
	return x
}

// separate makes service a process of its own beside the rest.
func (u *upTarget) separate(t *testing.T, service string) {
	t.Helper()
	if u.apart == service {
		return
	}
	if u.apart != "" {
		u.stop(t, u.apart, syscall.SIGTERM)
	}
	u.stop(t, "up", syscall.SIGTERM)
	u.apart = service
	u.start(t, "up", u.upArgs()...)
	u.start(t, service, u.serveArgs(service)...)
	u.awaitStart(t, service)
}

// awaitStart waits until the dev cluster and the service's admin page answer.
func (u *upTarget) awaitStart(t *testing.T, service string) {
	t.Helper()
	// Stopping what has not begun would prove nothing.
	admin := &API{Base: "http://" + u.admin(service), Client: http.DefaultClient}
	eventually(t, 30*time.Second, service+" answers", func(ctx context.Context) error {
		return admin.do(ctx, http.MethodGet, "/healthz", "", nil, nil)
	})
	if u.kubeconfig == "" {
		api := &API{Base: "http://" + u.ports["api"], Client: http.DefaultClient}
		eventually(t, 30*time.Second, "the dev cluster answers again", func(ctx context.Context) error {
			return api.do(ctx, http.MethodGet, "/version", "", nil, nil)
		})
	}
}

// admin is the address of a service's admin page.
func (u *upTarget) admin(service string) string {
	if service == "indexer" {
		service = "index"
	}
	return u.ports[service+"-admin"]
}

// serveArgs runs one service by itself on the ports and data it has in the all-in-one process.
func (u *upTarget) serveArgs(service string) []string {
	if service == "nodes" {
		return []string{
			"serve", "node", "--simulated-nodes", "3", "--root-dir", filepath.Join(u.dir, "data", "nodes"), "--admin-listen", u.admin(service),
			"--index-url", u.ports["index"], "--api-url", "http://" + u.ports["api"],
		}
	}
	a := []string{"serve", service, "--admin-listen", u.admin(service)}
	switch service {
	case "controllers":
	case "indexer":
		a = append(a, "--listen", u.ports["index"])
	default:
		a = append(a, "--listen", u.ports[service])
	}
	if service == "queue" {
		return append(a, "--queue-data-dir", filepath.Join(u.dir, "data", "queue"))
	}
	a = append(a, "--nats-url", "nats://"+u.ports["nats"])
	if service == "controllers" {
		a = append(a, "--index-url", u.ports["index"], "--queue-url", u.ports["queue"])
	}
	switch {
	case service == "indexer":
		return a
	case u.kubeconfig != "":
		return append(a, "--kubeconfig", u.kubeconfig)
	}
	return append(a, "--api-url", "http://"+u.ports["api"])
}

func (u *upTarget) upArgs() []string {
	a := []string{
		"up", "--no-demo", "--data-dir", filepath.Join(u.dir, "data"),
		"--index-listen", u.ports["index"], "--queue-listen", u.ports["queue"], "--reflector-listen", u.ports["reflector"],
		"--nats-listen", u.ports["nats"],
		"--index-admin-listen", u.ports["index-admin"], "--queue-admin-listen", u.ports["queue-admin"],
		"--reflector-admin-listen", u.ports["reflector-admin"], "--controllers-admin-listen", u.ports["controllers-admin"],
		"--nodes-admin-listen", u.ports["nodes-admin"], "--gateway-listen", u.ports["gateway"], "--gateway-admin-listen", "off",
		"--console-listen", "127.0.0.1:0", "--console-admin-listen", "off",
	}
	if u.apart != "" {
		a = append(a, "--skip", u.apart)
	}
	if u.kubeconfig != "" {
		return append(a, "--kubeconfig", u.kubeconfig, "--controllers", "job")
	}
	return append(a, "--api-listen", u.ports["api"])
}

func (u *upTarget) start(t *testing.T, name string, args ...string) {
	t.Helper()
	u.startBuild(t, u.binary, name, args...)
}

// startBuild is start with another build of the program.
func (u *upTarget) startBuild(t *testing.T, binary, name string, args ...string) {
	t.Helper()
	p := &process{done: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	u.processes[name] = p
}

// stop ends a process. After SIGTERM it must have ended cleanly.
func (u *upTarget) stop(t *testing.T, name string, signal syscall.Signal) {
	t.Helper()
	p := u.processes[name]
	delete(u.processes, name)
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal %s: %v", name, err)
	}
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Errorf("%s did not stop within 30 s of %s", name, signal)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	if code := p.cmd.ProcessState.ExitCode(); signal == syscall.SIGTERM && code != 0 {
		t.Errorf("%s exited with %d after SIGTERM:\n%s", name, code, tail(p.out.Bytes(), 4000))
	}
}

func tail(text []byte, most int) []byte {
	return text[max(0, len(text)-most):]
}

// built is the binary as it is, linked once for all tests.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(built.dir)
	os.Exit(code)
}

// build returns the binary.
func build(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "deltaplane-system-"); built.err == nil { //nolint:usetesting // for all tests
			built.path, built.err = goBuild(context.Background(), built.dir) // for tests that outlive this one
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

// goBuild compiles the program into a folder.
func goBuild(ctx context.Context, dir string, flags ...string) (string, error) {
	binary := filepath.Join(dir, "deltaplane")
	args := append([]string{"build", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "github.com/deltaplane/deltaplane/cmd/deltaplane")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}
