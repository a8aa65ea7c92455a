package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gatewayBefore is a gateway before a cluster, with the index that it reads, and its kubeconfig.
func gatewayBefore(t *testing.T, k *kubeCluster) (kubeconfig, admin string) {
	t.Helper()
	u := newUp(t, k.kubeconfig)
	u.start(t, "up", append(u.upArgs(), "--resources", "*", "--skip", "queue,controllers,nodes", "--gateway-admin-listen", u.admin("queue"))...)
	kubeconfig = u.gatewayKubeconfig(t)
	gateway := loadKubeconfig(t, kubeconfig)
	eventually(t, time.Minute, "the gateway answers from the index", func(ctx context.Context) error {
		return errors.Join(gateway.servedByIndex(ctx, "/api/v1/pods?resourceVersion=0"), gateway.servedByIndex(ctx, "/apis/apps/v1/replicasets?resourceVersion=0"))
	})
	return kubeconfig, u.admin("queue")
}

// beside runs a program of the cluster's beside it, until the test ends.
func beside(t *testing.T, name string, args ...string) {
	t.Helper()
	program, err := kubeProgram()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command(program, "build") //nolint:noctx // it is built already
	build.Dir = kubeModule
	dir, err := build.Output()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(strings.TrimSpace(string(dir)), name), args...) //nolint:noctx // it ends by a signal
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it says that it was asked to end
		_ = log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", name, tail(said, 4000))
		}
	})
}

// Kubernetes' own controllers and scheduler work through the gateway, with no more than another
// server in their kubeconfig: they list and watch from the index, and what they write comes back.
func TestRealControllersAndSchedulerOfKubernetesRunThroughTheGateway(t *testing.T) {
	t.Parallel()
	k := startKube(t)
	kubeconfig, admin := gatewayBefore(t, k)
	const scheduler = "through-the-gateway"
	config := filepath.Join(t.TempDir(), "scheduler.yaml")
	text := fmt.Sprintf("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\nclientConnection: {kubeconfig: %q}\nprofiles: [{schedulerName: %s}]\n", kubeconfig, scheduler)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	beside(t, "kube-scheduler", "--config="+config, "--secure-port=0")
	beside(t, "kube-controller-manager", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--controllers=deployment-controller,replicaset-controller,statefulset-controller,endpointslice-controller,disruption-controller,garbage-collector-controller")

	const deployments = "/apis/apps/v1/namespaces/default/deployments"
	deployed := func(replicas int32, image string) func(context.Context) error {
		return func(ctx context.Context) error {
			var d appsv1.Deployment
			if err := k.api.do(ctx, http.MethodGet, deployments+"/web", "", nil, &d); err != nil {
				return err
			}
			s := d.Status
			if s.ObservedGeneration < d.Generation || s.AvailableReplicas != replicas || s.UpdatedReplicas != replicas || s.Replicas != replicas || d.Spec.Template.Spec.Containers[0].Image != image {
				return fmt.Errorf("the deployment is at %+v", s)
			}
			return nil
		}
	}
	object := fmt.Appendf(nil, `{"metadata":{"name":"web"},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},
		"template":{"metadata":{"labels":{"app":"web"}},"spec":{"schedulerName":%q,"containers":[{"name":"c","image":"i:1"}]}}}}`, scheduler)
	if err := k.api.do(t.Context(), http.MethodPost, deployments, "application/json", object, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "three pods are available", deployed(3, "i:1"))
	patch := func(text string) {
		if err := k.api.do(t.Context(), http.MethodPatch, deployments+"/web", "application/strategic-merge-patch+json", []byte(text), nil); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"spec":{"replicas":5,"template":{"spec":{"containers":[{"name":"c","image":"i:2"}]}}}}`)
	eventually(t, 2*time.Minute, "five pods of the next image are available", deployed(5, "i:2"))
	if err := k.api.delete(t.Context(), deployments+"/web", "Background"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "what belonged to the deployment is gone", func(ctx context.Context) error {
		var pods metav1.PartialObjectMetadataList
		if err := k.api.do(ctx, http.MethodGet, "/api/v1/namespaces/default/pods?labelSelector=app=web", "", nil, &pods); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are there", len(pods.Items))
		}
		return nil
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	metrics := string(raw)
	for line := range strings.SplitSeq(metrics, "\n") {
		if strings.HasPrefix(line, "deltaplane_gateway_") {
			t.Log(line)
		}
	}
	if !strings.Contains(metrics, `deltaplane_gateway_requests_total{by="index",reason="",verb="watch"}`) {
		t.Error("no watch was answered from the index")
	}
}
