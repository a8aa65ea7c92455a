package system

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// kubeEnv says that the programs of test/kube may be built and run.
const kubeEnv = "DELTAPLANE_KUBE"

// kubeProgram is the command of test/kube, built once for all tests that start a cluster.
var kubeProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "deltaplane-kube-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "kube")
	cmd := exec.Command("go", "build", "-o", program, "./cmd/kube")
	cmd.Dir = kubeModule
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
})

const kubeModule = "../kube"

// kubeCluster is a real API server that a test has for itself, with etcd, simulated nodes and what
// else test/kube brings.
type kubeCluster struct {
	kubeconfig string
	dir        string
	api        *API
}

// startKube starts a cluster with the arguments of "kube up"; it ends with the test.
func startKube(t *testing.T, args ...string) *kubeCluster {
	t.Helper()
	if os.Getenv(kubeEnv) != "1" {
		t.Skipf("%s is not 1: `make kube-nodes` runs this on real API servers", kubeEnv)
	}
	program, err := kubeProgram()
	if err != nil {
		t.Fatal(err)
	}
	k := &kubeCluster{dir: t.TempDir()}
	k.kubeconfig = filepath.Join(k.dir, "kubeconfig")
	cmd := exec.Command(program, append([]string{"up", "--dir", k.dir}, args...)...)
	cmd.Dir, cmd.Stderr = kubeModule, t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n') // "export KUBECONFIG=…", or its end
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kube up: %v", err)
		}
	})
	if !strings.Contains(line, k.kubeconfig) {
		t.Fatalf("kube up says %q, want where its kubeconfig is", line)
	}
	k.api = loadKubeconfig(t, k.kubeconfig)
	return k
}

// kubeletLabel is what a simulated node answers by, see test/kube.
const kubeletLabel = "deltaplane.io/kubelet"

// silence stops or starts the heartbeats of nodes.
func (k *kubeCluster) silence(t *testing.T, stop bool, nodes ...string) {
	t.Helper()
	var label any = "kwok"
	if stop {
		label = nil
	}
	for _, node := range nodes {
		patch := map[string]any{"metadata": map[string]any{"labels": map[string]any{kubeletLabel: label}}}
		if err := k.api.merge(t.Context(), "/api/v1/nodes/"+node, patch); err != nil {
			t.Fatalf("label of %s: %v", node, err)
		}
	}
}

// podOn makes a pod that runs on a node for ever and tolerates a NoExecute taint for so many
// seconds.
func (k *kubeCluster) podOn(t *testing.T, node, name, taint string, seconds int) {
	t.Helper()
	tolerations := []any{}
	for _, key := range []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} {
		if key != taint { // or the API server gives it 300 seconds
			tolerations = append(tolerations, map[string]any{"key": key, "operator": "Exists", "effect": "NoExecute"})
		}
	}
	tolerations = append(tolerations, map[string]any{"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
	pod := map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "annotations": map[string]string{runSeconds: forever}},
		"spec": map[string]any{
			"nodeName": node, "terminationGracePeriodSeconds": 1, "tolerations": tolerations,
			"containers": []any{map[string]any{"name": "main", "image": "none"}},
		},
	}
	if err := k.api.create(t.Context(), podsPath, pod, nil); err != nil {
		t.Fatalf("create pod %s: %v", name, err)
	}
}

const podsPath = "/api/v1/namespaces/default/pods"

// plane is our services beside a cluster, each a process of the built binary.
type plane struct {
	*upTarget

	control []string // further arguments of controllers
	store   []string // further arguments of the queue
}

// startPlane starts NATS, reflector, indexer and queue; controllers are the test's.
func (k *kubeCluster) startPlane(t *testing.T, store, control []string) *plane {
	t.Helper()
	p := &plane{upTarget: newUp(t, k.kubeconfig), control: control, store: store}
	for i, port := range embeddedtest.Ports(t, 2) {
		p.ports[fmt.Sprintf("controllers-%d-admin", i+2)] = port
	}
	for _, part := range []string{"nats", "reflector", "indexer", "queue"} {
		p.run(t, part)
	}
	return p
}

// run starts one part. Replicas of controllers are "controllers", "controllers-2" and
// "controllers-3".
func (p *plane) run(t *testing.T, part string) {
	t.Helper()
	switch {
	case part == "nats": // the all-in-one process without the rest
		p.start(t, part, "up", "--no-demo", "--skip", "reflector,indexer,queue,controllers,gateway,console", "--kubeconfig", p.kubeconfig,
			"--data-dir", filepath.Join(p.dir, "nats"), "--nats-listen", p.ports["nats"], "--log-level", "info")
	case part == "reflector":
		p.start(t, part, append(p.serveArgs(part), "--liveness-every", testLiveness.String())...)
	case part == "queue" && p.store != nil:
		p.start(t, part, append([]string{"serve", "queue", "--admin-listen", p.admin(part), "--listen", p.ports[part]}, p.store...)...)
	case strings.HasPrefix(part, "controllers"):
		args := append(p.serveArgs("controllers"), "--admin-listen", p.admin(part), "--identity", part)
		p.start(t, part, append(args, p.control...)...)
	default:
		p.start(t, part, p.serveArgs(part)...)
	}
}

// kill ends a part as if its machine had gone; what it said is shown when the test fails.
func (p *plane) kill(t *testing.T, part string) {
	t.Helper()
	dead := p.processes[part]
	p.stop(t, part, syscall.SIGKILL)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of %s before it was killed:\n%s", part, tail(dead.out.Bytes(), 8_000))
		}
	})
}

// ready waits until replicas of controllers are.
func (p *plane) ready(t *testing.T, replicas ...string) {
	t.Helper()
	for _, name := range replicas {
		admin := &API{Base: "http://" + p.admin(name), Client: http.DefaultClient}
		eventually(t, time.Minute, name+" is ready", func(ctx context.Context) error {
			return admin.do(ctx, http.MethodGet, "/readyz", "", nil, nil)
		})
	}
}
