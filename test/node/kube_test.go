//go:build linux

package node_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// kubeEnv says that the programs of test/kube may be built and run.
const kubeEnv = "DELTAPLANE_KUBE"

// startKube starts a real API server, without any node, with scheduler, garbage collector and
// service accounts; it ends with the test.
func startKube(t *testing.T) (kubeconfig string, a *api) {
	t.Helper()
	if os.Getenv(kubeEnv) != "1" {
		t.Skipf("%s is not 1: with it this runs on a real API server, which is built first", kubeEnv)
	}
	const module = "../kube"
	program := filepath.Join(t.TempDir(), "kube")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/kube")
	build.Dir = module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build test/kube: %v\n%s", err, out)
	}
	dir := t.TempDir()
	cmd := exec.Command(program, "up", "--dir", dir, "--nodes", "0")
	cmd.Dir, cmd.Stderr = module, t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, _ := bufio.NewReader(out).ReadString('\n')
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kube up: %v", err)
		}
	})
	kubeconfig = filepath.Join(dir, "kubeconfig")
	if !strings.Contains(said, kubeconfig) {
		t.Fatalf("kube up says %q, want where its kubeconfig is", said)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig, &api{base: config.Host, client: client}
}

// TestANodeOfARealAPIServer is the whole system below kube-apiserver and kube-scheduler.
func TestANodeOfARealAPIServer(t *testing.T) {
	t.Parallel()
	if _, err := containerd.Built(t.Context()); err != nil {
		t.Skip(err)
	}
	kubeconfig, a := startKube(t)
	w := newWorld(t, containerd.Built, cluster{api: a, args: []string{"--kubeconfig", kubeconfig}, real: true})
	t.Run("a pod speaks to the API server as its service account", func(t *testing.T) { testToken(t, w, authority(t, kubeconfig)) })
	runNode(t, w, streamLate)
}

// authority is the certificate by which the API server is known.
func authority(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	return string(config.CAData)
}

// testToken uses what every API server puts into a pod: the projected token, the authority's
// certificate, the namespace.
func testToken(t *testing.T, w *world, ca string) {
	eventually(t, startLimit, "the default service account exists", func(ctx context.Context) error {
		return w.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
	// kube-controller-manager would publish it, in a controller that test/kube does not run.
	if err := w.create(t.Context(), "/api/v1/namespaces/default/configmaps", &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: "default"},
		Data: map[string]string{"ca.crt": ca},
	}, nil); err != nil {
		t.Fatal(err)
	}
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount"
	pod := w.boxPod(t, "speaks", corev1.RestartPolicyNever, "call", w.base+podsPath, dir+"/token", dir+"/ca.crt")
	pod.Spec.AutomountServiceAccountToken = nil
	made := w.runPod(t, pod)
	w.awaitPhase(t, "speaks", corev1.PodSucceeded)
	// It is known, and may do nothing.
	w.awaitLog(t, made, "403 Forbidden")
	w.awaitLog(t, made, "system:serviceaccount:default:default")
}
