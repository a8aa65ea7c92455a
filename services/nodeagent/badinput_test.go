package nodeagent_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent"
)

// waits waits until the only container of a pod waits for a reason.
func (w *world) waits(name, reason string) {
	w.t.Helper()
	w.eventually(name+" waits as "+reason, func() string {
		s := w.pod(name).Status.ContainerStatuses
		if len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == reason {
			return ""
		}
		return fmt.Sprintf("%+v\n%s", s, w.events(name))
	})
}

func TestACommandThatIsNotThereIsSaidToBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	w.create("once", nil, map[string]string{criruntime.StartErrorAnnotation: `exec: "nope": not found`})
	pod := w.becomes("once", corev1.PodFailed)
	if s := pod.Status.ContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || s[0].State.Terminated.ExitCode != 128 {
		t.Errorf("container statuses are %+v, want one that could not be started", s)
	}
	w.told("once", `"nope": not found`)
}

func TestAContainerThatRanOutOfMemorySaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	w.create("oom", nil, map[string]string{
		criruntime.RunSecondsAnnotation: "100ms", criruntime.ExitCodeAnnotation: "137", criruntime.ExitReasonAnnotation: "OOMKilled",
	})
	pod := w.becomes("oom", corev1.PodFailed)
	if s := pod.Status.ContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || s[0].State.Terminated.Reason != "OOMKilled" || s[0].State.Terminated.ExitCode != 137 {
		t.Errorf("container statuses are %+v, want OOMKilled with 137", s)
	}
}

func TestALogDirectoryThatCannotBeWrittenIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ok(os.WriteFile(w.root+"/file", nil, 0o600))
	w.start(func(c *nodeagent.Config, _ *nodeagent.Deps) { c.LogRoot = w.root + "/file/logs" })
	w.create("mute", nil, runs("1s"))
	w.told("mute", w.root+"/file")
}

func TestAConfigMapThatIsNotThereKeepsThePodWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	w.create("env", map[string]any{"containers": []map[string]any{{
		"name": "c", "image": "app:1", "envFrom": []map[string]any{{"configMapRef": map[string]any{"name": "absent"}}},
	}}}, runs("1s"))
	w.waits("env", "CreateContainerConfigError")
	w.create("mount", map[string]any{"volumes": []map[string]any{{"name": "v", "configMap": map[string]any{"name": "absent"}}}}, runs("1s"))
	w.told("mount", "FailedMount: ")
	w.remove("mount", nil)
	w.vanishes("mount")
	w.remove("env", nil)
	w.vanishes("env")
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := nodeagent.Config{
		Node: "Not A Name", Cluster: "a/b", CRI: "tcp://x", RootDir: "here", LogRoot: "there", MaxPods: -1, Relist: 1, Resync: -1, Heartbeat: -1,
		Labels: map[string]string{"-": "?"}, Address: "nowhere", PodAPI: "nowhere", HostNetworkOnly: true, WaitForNetwork: true,
		ClusterDNS: []string{"10.0.0.10", "dns.example"}, ClusterDomain: "Cluster", ResolvConf: "resolv.conf",
		KubeletListen: "10250",
	}.Validate()
	if err == nil {
		t.Fatal("Validate() = nil")
	}
	for _, want := range []string{
		"relist 1ns is below 10ms",
		"Not A Name", "a/b", "tcp://x", `"here"`, `"there"`, "max pods", "resync", "heartbeat", `label "-"`, `address "nowhere"`, "host:port", "network only",
		`cluster DNS "dns.example"`, `cluster domain "Cluster"`, `resolver file "resolv.conf"`,
		`kubelet API "10250"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() does not name %q:\n%v", want, err)
		}
	}
	if err := (nodeagent.Config{KubeletClientCA: "ca.crt"}).Validate(); err == nil || !strings.Contains(err.Error(), "client CA of the kubelet API") {
		t.Errorf("Validate() of a client CA without an address = %v", err)
	}
	if err := (nodeagent.Config{}).Validate(); err != nil {
		t.Errorf("Validate() of the zero value = %v", err)
	}
}
