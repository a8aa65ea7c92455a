//go:build linux

package node_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// testProbes is about a container that is started by HTTP, and ready and alive by files of its
// folder /mark.
func testProbes(t *testing.T, w *world) {
	host, text, err := net.SplitHostPort(embeddedtest.Ports(t, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	pod := w.boxPod(t, "probed", corev1.RestartPolicyAlways, "serve", net.JoinHostPort(host, text))
	often := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 5}
	}
	file := func(name string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/box", "cat", "/mark/" + name}}}
	}
	main := &pod.Spec.Containers[0]
	main.ReadinessProbe, main.LivenessProbe = often(file("ready")), often(file("live"))
	main.LivenessProbe.TerminationGracePeriodSeconds = new(int64(1))
	main.StartupProbe = often(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: host, Port: intstr.FromInt(port)}})
	main.StartupProbe.FailureThreshold = 60

	mark := func(name string) string { return filepath.Join(w.dir, "mark", pod.Name, name) }
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(mark(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("live")
	w.runPod(t, pod)
	is := func(what string, started, ready bool, restarts int32) {
		t.Helper()
		w.await(t, pod.Name, what, 60*time.Second, func(p *corev1.Pod) bool {
			s := p.Status.ContainerStatuses
			return len(s) == 1 && s[0].Started != nil && *s[0].Started == started && s[0].Ready == ready && s[0].RestartCount >= restarts
		})
	}
	is("has started and is not ready", true, false, 0)
	w.awaitEvent(t, pod.Name, "Unhealthy", "Readiness probe failed: box: open /mark/ready")
	write("ready")
	is("is ready", true, true, 0)
	if err := os.Remove(mark("live")); err != nil {
		t.Fatal(err)
	}
	w.awaitEvent(t, pod.Name, "Killing", "Container main failed liveness probe, will be restarted")
	write("live")
	is("was restarted and is ready again", true, true, 1)
}

// testResolver is about the resolver of a pod that leaves it to the cluster.
func testResolver(t *testing.T, w *world) {
	pod := w.boxPod(t, "resolver", corev1.RestartPolicyNever, "cat", "/etc/resolv.conf")
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{"own.example"}}
	made := w.runPod(t, pod)
	for _, text := range []string{"nameserver 10.96.0.10", "search default.svc.cluster.local svc.cluster.local cluster.local", "own.example", "options ndots:5"} {
		w.awaitLog(t, made, text)
	}
}
