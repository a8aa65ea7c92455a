package kuberuntime_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// made syncs a pod and returns what the runtime was asked to make.
func (n *node) made(pod *corev1.Pod, in kuberuntime.Inputs) (box *runtimeapi.PodSandboxConfig, containers []*runtimeapi.ContainerConfig, r kuberuntime.Result) {
	n.t.Helper()
	defer n.rt.Inject("RunPodSandbox", criruntime.Fault{Match: func(r any) bool {
		if q, ok := r.(*runtimeapi.RunPodSandboxRequest); ok {
			box = proto.CloneOf(q.GetConfig())
		}
		return false
	}})()
	defer n.rt.Inject("CreateContainer", criruntime.Fault{Match: func(r any) bool {
		if q, ok := r.(*runtimeapi.CreateContainerRequest); ok {
			containers = append(containers, proto.CloneOf(q.GetConfig()))
		}
		return false
	}})()
	r = n.m.SyncPod(n.t.Context(), pod, n.status(pod), in)
	return box, containers, r
}

func TestAPodsSpecReachesTheRuntime(t *testing.T) {
	t.Parallel()
	root, logs := t.TempDir(), t.TempDir()
	n := newNode(t, kuberuntime.Config{RootDir: root, LogRoot: logs, DNS: []string{"10.0.0.10"}})
	pod := newPod("web-0", always, "c")
	pod.Labels = map[string]string{"app": "web"}
	pod.Spec.Hostname, pod.Spec.Subdomain = "web", "svc"
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "10.1.1.1", Hostnames: []string{"db", "db.example"}}}
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{"example"}, Options: []corev1.PodDNSConfigOption{{Name: "timeout", Value: new("2")}}}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: new(int64(1000)), RunAsNonRoot: new(true), FSGroup: new(int64(7)), SupplementalGroups: []int64{8},
		Sysctls:        []corev1.Sysctl{{Name: "net/ipv4/ip_unprivileged_port_start", Value: "80"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	pod.Spec.ShareProcessNamespace = new(true)
	pod.Spec.Containers[0] = corev1.Container{
		Name: "c", Image: "app:1", Command: []string{"/run", "$(NAME)"}, Args: []string{"$$(NAME)", "$(OTHER)"}, WorkingDir: "/work", TTY: true, Stdin: true,
		Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}, {ContainerPort: 81}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "data", MountPath: "/data", MountPropagation: new(corev1.MountPropagationHostToContainer)},
			{Name: "conf", MountPath: "etc/conf", ReadOnly: true, SubPath: "key"},
		},
		TerminationMessagePath: "/dev/termination-log",
		SecurityContext: &corev1.SecurityContext{
			RunAsGroup: new(int64(2000)), ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}},
		},
	}
	conf := t.TempDir()
	if err := os.WriteFile(filepath.Join(conf, "key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var ips []string
	box, cs, r := n.made(pod, kuberuntime.Inputs{
		Volumes: kuberuntime.Volumes{"data": "/volumes/data", "conf": conf},
		Environment: func(_ context.Context, _ *corev1.Container, podIPs []string) ([]kuberuntime.EnvVar, error) {
			ips = podIPs
			return []kuberuntime.EnvVar{{Name: "NAME", Value: "world"}}, nil
		},
	})
	if r.Err != nil || len(cs) != 1 || len(ips) == 0 {
		t.Fatalf("%v, %d containers, addresses %v", r.Err, len(cs), ips)
	}
	groups := []int64{7, 8}
	want := &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: "web-0", Namespace: "ns", Uid: "uid-web-0"},
		Hostname:    "web",
		Labels:      map[string]string{"app": "web", "deltaplane.io/node": "n1", "io.kubernetes.pod.name": "web-0", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "uid-web-0"},
		Annotations: pod.Annotations, LogDirectory: filepath.Join(logs, "ns_web-0_uid-web-0"),
		DnsConfig: &runtimeapi.DNSConfig{
			Servers: []string{"10.0.0.10"}, Searches: []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "example"}, Options: []string{"ndots:5", "timeout:2"},
		},
		PortMappings: []*runtimeapi.PortMapping{{ContainerPort: 80, HostPort: 8080}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "80"},
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}, RunAsUser: &runtimeapi.Int64Value{Value: 1000},
				SupplementalGroups: groups, Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
	if diff := cmp.Diff(box, want, protocmp.Transform()); diff != "" {
		t.Errorf("sandbox (-got +want):\n%s", diff)
	}
	c := cs[0]
	for key, want := range map[string]string{
		"io.kubernetes.container.hash": "", "io.kubernetes.container.restartCount": "0", "io.kubernetes.pod.terminationGracePeriod": "2",
		"io.kubernetes.container.terminationMessagePath": "/dev/termination-log", "deltaplane.io/container-kind": "container", "deltaplane.io/restart-policy": "Always",
	} {
		if got, ok := c.GetAnnotations()[key]; !ok || want != "" && got != want {
			t.Errorf("annotation %s is %q, want %q", key, got, want)
		}
	}
	security := c.GetLinux().GetSecurityContext()
	if len(security.GetMaskedPaths()) == 0 || len(security.GetReadonlyPaths()) == 0 {
		t.Error("an unprivileged container sees all of /proc")
	}
	security.MaskedPaths, security.ReadonlyPaths, c.Annotations, c.Labels = nil, nil, nil, nil
	wantC := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: c.GetImage().GetImage(), UserSpecifiedImage: "app:1"},
		Command: []string{"/run", "world"}, Args: []string{"$(NAME)", "$(OTHER)"}, WorkingDir: "/work", Tty: true, Stdin: true,
		Envs: []*runtimeapi.KeyValue{{Key: "NAME", Value: []byte("world")}}, LogPath: "c/0.log",
		Mounts: []*runtimeapi.Mount{
			{ContainerPath: "/data", HostPath: "/volumes/data", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
			{ContainerPath: "/etc/conf", HostPath: filepath.Join(conf, "key"), Readonly: true},
			{ContainerPath: "/etc/hosts", HostPath: filepath.Join(root, "pods/uid-web-0/etc-hosts"), Readonly: true},
			{ContainerPath: "/dev/termination-log", HostPath: filepath.Join(root, "pods/uid-web-0/containers/c/0")},
		},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 150000, CpuShares: 512, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 501},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}, RunAsUser: &runtimeapi.Int64Value{Value: 1000},
				RunAsGroup: &runtimeapi.Int64Value{Value: 2000}, ReadonlyRootfs: true, NoNewPrivs: true, SupplementalGroups: groups,
				Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}},
				Seccomp:      &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
	if diff := cmp.Diff(c, wantC, protocmp.Transform()); diff != "" {
		t.Errorf("container (-got +want):\n%s", diff)
	}
	hosts, err := os.ReadFile(filepath.Join(root, "pods/uid-web-0/etc-hosts"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"127.0.0.1\tlocalhost\n", ips[0] + "\tweb.svc.ns.svc.cluster.local\tweb\n", "10.1.1.1\tdb\tdb.example\n"} {
		if !strings.Contains(string(hosts), line) {
			t.Errorf("hosts file has no line %q:\n%s", line, hosts)
		}
	}
}

func TestFaultsOfASpecAreNamed(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	volume := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(volume, "out")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		in         kuberuntime.Inputs
		do         func(*corev1.Pod, *corev1.Container)
	}{
		{name: "a name that leads elsewhere", want: `name: "../x"`, do: func(_ *corev1.Pod, c *corev1.Container) { c.Name = "../x" }},
		{name: "root against runAsNonRoot", want: "container has runAsNonRoot and image will run as root", do: func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true)}
		}},
		{name: "user 0 against runAsNonRoot", want: "breaks non-root policy", do: func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(0))}
		}},
		{name: "a subPath out of its volume", want: "volumeMounts[0].subPath", in: kuberuntime.Inputs{Volumes: kuberuntime.Volumes{"v": volume}}, do: func(_ *corev1.Pod, c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "out"}}
		}},
		{name: "a subPath with dots", want: "volumeMounts[0].subPath", in: kuberuntime.Inputs{Volumes: kuberuntime.Volumes{"v": volume}}, do: func(_ *corev1.Pod, c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "../x"}}
		}},
		{name: "an environment that cannot be made", want: `configmap "x" not found`, in: kuberuntime.Inputs{
			Environment: func(context.Context, *corev1.Container, []string) ([]kuberuntime.EnvVar, error) {
				return nil, errors.New(`configmap "x" not found`)
			},
		}},
		{name: "an environment nobody makes", want: `env "X"`, do: func(_ *corev1.Pod, c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{}}}
		}},
		{name: "a signal nobody knows", want: "lifecycle.stopSignal", do: func(_ *corev1.Pod, c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.Signal("SIGNOPE"))}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, kuberuntime.Config{})
			pod := newPod("p", always, "c")
			if tc.do != nil {
				tc.do(pod, &pod.Spec.Containers[0])
			}
			_, cs, r := n.made(pod, tc.in)
			if w := r.Waiting[pod.Spec.Containers[0].Name]; w.Reason != kuberuntime.ReasonCreateContainerConfigError || !strings.Contains(w.Message, tc.want) || len(cs) != 0 {
				t.Errorf("waiting %+v, %d containers made; want %q", w, len(cs), tc.want)
			}
		})
	}
}

func TestPodsOnTheNodesNetwork(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{HostNetworkOnly: true, RootDir: t.TempDir(), DNS: []string{"10.0.0.10"}})
	pod := newPod("p", always, "c")
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	box, cs, r := n.made(pod, kuberuntime.Inputs{})
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	mode := box.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork()
	if mode != runtimeapi.NamespaceMode_NODE || box.GetHostname() != "" || len(box.GetPortMappings()) != 0 ||
		cs[0].GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != mode {
		t.Errorf("sandbox %v, container %v", box, cs[0])
	}
	if d := box.GetDnsConfig(); len(d.GetServers()) != 1 {
		t.Errorf("DNS %v: the policy is ClusterFirst, whatever the network came to", d)
	}
}

func TestQualityOfServiceDecidesWhoIsKilledFirst(t *testing.T) {
	t.Parallel()
	one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	for _, tc := range []struct {
		name string
		res  corev1.ResourceRequirements
		want int64
	}{
		{"nothing asked for", corev1.ResourceRequirements{}, 1000},
		{"something asked for", corev1.ResourceRequirements{Requests: one}, 501},
		{"limits alone", corev1.ResourceRequirements{Limits: one}, -997},
		{"as much as the limit", corev1.ResourceRequirements{Limits: one, Requests: one}, -997},
	} {
		n := newNode(t, kuberuntime.Config{})
		pod := newPod("p", always, "c")
		pod.Spec.Containers[0].Resources = tc.res
		_, cs, r := n.made(pod, kuberuntime.Inputs{})
		if r.Err != nil || cs[0].GetLinux().GetResources().GetOomScoreAdj() != tc.want {
			t.Errorf("%s: %v, %v; want %d", tc.name, cs, r.Err, tc.want)
		}
	}
}

func TestUnsupportedFieldsAreNamed(t *testing.T) {
	t.Parallel()
	if got := kuberuntime.Unsupported(newPod("p", always, "a")); len(got) != 0 {
		t.Errorf("a plain pod: %v", got)
	}
	pod := newPod("p", always, "a", "b")
	s := &pod.Spec
	s.RuntimeClassName, s.HostUsers, s.SetHostnameAsFQDN = new("kata"), new(false), new(true)
	s.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	s.InitContainers = []corev1.Container{{Name: "i", RestartPolicy: new(corev1.ContainerRestartPolicyNever)}, {Name: "s", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
	s.Containers[1].RestartPolicy = new(corev1.ContainerRestartPolicyNever)
	s.Containers[1].RestartPolicyRules = []corev1.ContainerRestartRule{
		{Action: corev1.ContainerRestartRuleActionRestart}, {Action: corev1.ContainerRestartRuleActionRestartAllContainers},
	}
	s.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "other", SubPath: "x"}, {Name: "scratch", SubPath: "x"}, {Name: "other", SubPathExpr: "x"}}
	s.Containers[1].Lifecycle = &corev1.Lifecycle{
		PreStop:   &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{}},
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}},
	}
	s.Containers[1].SecurityContext = &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}}
	s.HostNetwork = true
	s.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{
		{Name: "kernel/shm_rmid_forced"}, {Name: "kernel.msgmax"}, {Name: "net.ipv4.tcp_syncookies"},
	}}
	s.Containers[0].Name = "a/b"
	var paths []string
	for _, err := range kuberuntime.Unsupported(pod) {
		path, _, _ := strings.Cut(err.Error(), ":")
		paths = append(paths, path)
	}
	want := []string{
		"spec.runtimeClassName", "spec.hostUsers", "spec.setHostnameAsFQDN", "spec.securityContext.sysctls[1].name",
		"spec.securityContext.sysctls[2].name", "spec.containers[0].name",
		"spec.containers[1].restartPolicyRules[1].action",
		"spec.containers[1].securityContext.seccompProfile.type", "spec.containers[1].lifecycle.preStop.httpGet",
	}
	if diff := cmp.Diff(paths, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	pod = newPod("p", always, "a", "b", "a")
	pod.Spec.InitContainers = []corev1.Container{{Name: "b"}}
	if got := fmt.Sprint(kuberuntime.Unsupported(pod)); got != `[spec.containers[1].name: Duplicate value: "b" spec.containers[2].name: Duplicate value: "a"]` {
		t.Errorf("two containers of one name: %s", got)
	}
	pod = newPod("p", always, "a")
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}}
	pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	if got := kuberuntime.Ignored(pod); len(got) != 2 || !strings.Contains(got[1], "spec.containers[0].resizePolicy: ") {
		t.Errorf("ignored: %q", got)
	}
}

func TestEveryFaultOfAConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	_, err := kuberuntime.New(kuberuntime.Config{
		RootDir: "relative", LogRoot: "logs", CrashLoop: kuberuntime.Backoff{Max: -time.Second}, ParallelPulls: -1, MinimumGrace: -1,
	}, nil, kuberuntime.Deps{})
	for _, want := range []string{"node:", `root dir: "relative"`, `log root: "logs"`, "crash loop:", "parallel pulls:", "minimum grace:", "runtime:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// What the agent writes is not the containers' to change: one that led its files elsewhere would
// have the agent write there.
func TestVolumesThatTheAgentFillsAreReadOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("web-0", always, "c")
	want, in := map[string]bool{}, kuberuntime.Inputs{Volumes: kuberuntime.Volumes{}}
	for name, v := range map[string]struct {
		src      corev1.VolumeSource
		readOnly bool
	}{
		"conf":  {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, true},
		"sec":   {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, true},
		"down":  {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, true},
		"proj":  {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, true},
		"empty": {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, false},
		"host":  {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}, false},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: v.src})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
		want["/"+name], in.Volumes[name] = v.readOnly, "/volumes/"+name
	}
	_, cs, r := n.made(pod, in)
	if r.Err != nil || len(cs) != 1 {
		t.Fatalf("%v, %d containers", r.Err, len(cs))
	}
	got := map[string]bool{}
	for _, m := range cs[0].GetMounts() {
		if _, ours := want[m.GetContainerPath()]; ours {
			got[m.GetContainerPath()] = m.GetReadonly()
		}
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("read-only (-got +want):\n%s", diff)
	}
}
