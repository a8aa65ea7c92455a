//go:build linux

package node_test

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

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// nodeName is the node of which the tests are about.
const nodeName = "real-1"

// startLimit is how long a part may take to be there.
const startLimit = 60 * time.Second

// Back-off of restarts in these tests: a tenth of what a node has by default, and of its table.
const (
	crashInitial = time.Second
	crashMax     = 8 * time.Second
)

// world is a dev cluster with our pipeline and controllers, a containerd, and the
// agent of one node, each a process of its own.
type world struct {
	*api
	binary    string
	dir       string
	index     string
	runtime   *containerd.Containerd
	agentArgs []string
	agent     *process
	plane     *process
}

// process is a running command and its output.
type process struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
	done chan struct{}
}

// Write keeps output.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(text)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.out.Bytes()
	return string(text[max(0, len(text)-20_000):])
}

// length is how much was written so far.
func (p *process) length() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Len()
}

// since is what was written after so much.
func (p *process) since(length int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.out.Bytes()[length:])
}

func run(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	p := &process{done: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// stop ends a process and waits for it.
func (p *process) stop(t *testing.T, name string, signal syscall.Signal) {
	t.Helper()
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Errorf("%s did not stop within 30 s of %s", name, signal)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	if code := p.cmd.ProcessState.ExitCode(); signal == syscall.SIGTERM && code != 0 {
		t.Errorf("%s exited with %d after SIGTERM:\n%s", name, code, p.output())
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

var buildOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "dp-node-")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "deltaplane")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/deltaplane/deltaplane/cmd/deltaplane").CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return binary, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if binary, err := buildOnce(); err == nil {
		_ = os.RemoveAll(filepath.Dir(binary))
	}
	os.Exit(code)
}

// cluster is the API server that a world is built on.
type cluster struct {
	*api
	args []string // by which our programs find it
	real bool
}

// newWorld starts everything and waits until the node is ready. Without an API server the plane
// brings its dev cluster.
func newWorld(t *testing.T, find func(context.Context) (containerd.Programs, error), on cluster, agentArgs ...string) *world {
	t.Helper()
	w := &world{api: on.api, runtime: start(t, find), dir: t.TempDir()}
	var err error
	if w.binary, err = buildOnce(); err != nil {
		t.Fatal(err)
	}
	ports := embeddedtest.Ports(t, 5)
	w.index = ports[1]
	up := []string{
		"up", "--nodes", "0", "--no-demo", "--data-dir", filepath.Join(w.dir, "plane"),
		"--index-listen", ports[1], "--queue-listen", ports[2], "--reflector-listen", ports[3], "--nats-listen", ports[4],
		"--index-admin-listen", "off", "--queue-admin-listen", "off", "--reflector-admin-listen", "off", "--controllers-admin-listen", "off", "--nodes-admin-listen", "off",
		"--gateway-listen", "127.0.0.1:0", "--gateway-admin-listen", "off", "--console-listen", "127.0.0.1:0", "--console-admin-listen", "off",
		"--node-monitor-grace-period", "10s", "--node-eviction-rate", "10", "--log-level", "info",
	}
	if on.real {
		up = append(append(up, "--controllers", "job,nodelifecycle,tainteviction"), on.args...)
	} else {
		w.api = &api{base: "http://" + ports[0], client: http.DefaultClient}
		on.args = []string{"--api-url", w.base}
		up = append(up, "--api-listen", ports[0])
	}
	w.plane = run(t, w.binary, up...)
	t.Cleanup(func() {
		w.plane.stop(t, "the plane", syscall.SIGTERM)
		if t.Failed() {
			t.Logf("output of the plane:\n%s", w.plane.output())
		}
	})
	eventually(t, startLimit, "the API server answers", func(ctx context.Context) error { return w.get(ctx, "/version", nil) })
	spacious(t, filepath.Join(w.dir, "node"))
	w.agentArgs = append([]string{
		"serve", "node", "--node-name", nodeName, "--cri", w.runtime.Endpoint(), "--index-url", w.index,
		"--root-dir", filepath.Join(w.dir, "node"), "--log-dir", filepath.Join(w.dir, "logs"), "--admin-listen", "off", "--host-network-only",
		"--crash-loop-initial", crashInitial.String(), "--crash-loop-max", crashMax.String(), "--heartbeat-every", "2s", "--log-level", "debug",
		"--cluster-dns", "10.96.0.10",
	}, append(on.args, agentArgs...)...)
	w.startAgent(t)
	t.Cleanup(func() {
		w.agent.stop(t, "the agent", syscall.SIGTERM)
		if t.Failed() {
			t.Logf("output of the agent:\n%s", w.agent.output())
		}
	})
	w.awaitNode(t, corev1.ConditionTrue)
	return w
}

// spacious makes a folder a file system of its own: on a disk that is nearly full
// the node would have disk pressure, rightly, and its pods no place to go.
func spacious(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatalf("mount %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

func (w *world) startAgent(t *testing.T) {
	t.Helper()
	w.agent = run(t, w.binary, w.agentArgs...)
}

func (w *world) killAgent(t *testing.T) {
	t.Helper()
	w.agent.stop(t, "the agent", syscall.SIGKILL)
}

// heal brings back what a part that failed may have left dead, so that the next is judged by
// itself.
func (w *world) heal(t *testing.T) {
	t.Helper()
	if w.runtime.Down() {
		if err := w.runtime.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if w.agent.ended() {
		w.startAgent(t)
	}
}

// awaitNode waits for the node's Ready condition.
func (w *world) awaitNode(t *testing.T, want corev1.ConditionStatus) {
	t.Helper()
	eventually(t, 60*time.Second, "the node's condition Ready is "+string(want), func(ctx context.Context) error {
		var n corev1.Node
		if err := w.get(ctx, nodesPath+"/"+nodeName, &n); err != nil {
			if w.agent.ended() && want == corev1.ConditionTrue {
				t.Fatalf("the agent ended:\n%s", w.agent.output())
			}
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", n.Status.Conditions)
	})
}
