package kuberuntime

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime/security"
)

// containerConfig is what a container is made from. Its errors are of the pod's spec, of what it
// refers to, or of the node's files; each says which.
func (s *syncing) containerConfig(ctx context.Context, c *corev1.Container, attempt uint32, image *runtimeapi.Image) (*runtimeapi.ContainerConfig, error) {
	if !plain(c.Name) {
		return nil, fmt.Errorf("name: %q cannot name files", c.Name)
	}
	env, err := s.environment(ctx, c)
	if err != nil {
		return nil, err
	}
	mounts, err := s.mounts(c, attempt, env)
	if err != nil {
		return nil, err
	}
	ns := s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	secured, err := security.Container(s.pod, c, ns, image)
	if err != nil {
		return nil, err
	}
	if err := s.makeLogDir(c); err != nil {
		return nil, err
	}
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: cmp.Or(image.GetId(), c.Image), UserSpecifiedImage: c.Image},
		Command:  environ.ExpandAll(c.Command, env), Args: environ.ExpandAll(c.Args, env), WorkingDir: c.WorkingDir,
		Mounts: mounts,
		Labels: s.containerLabels(s.pod, c), Annotations: containerAnnotations(s.pod, c, int(attempt)),
		Stdin: c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{Resources: resources(s.pod, c), SecurityContext: secured},
	}
	for _, v := range env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	if s.config.GetLogDirectory() != "" {
		config.LogPath = logPath(c.Name, attempt)
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		n, ok := runtimeapi.Signal_value[string(*c.Lifecycle.StopSignal)]
		if !ok {
			return nil, fmt.Errorf("lifecycle.stopSignal: %q is not known to the runtime's API", *c.Lifecycle.StopSignal)
		}
		config.StopSignal = runtimeapi.Signal(n)
	}
	return config, nil
}

func (s *syncing) environment(ctx context.Context, c *corev1.Container) ([]environ.Var, error) {
	if s.in.Environment != nil {
		return s.in.Environment(ctx, c, s.ips)
	}
	var out []environ.Var
	known := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			return nil, fmt.Errorf("env %q: nobody resolves its valueFrom", e.Name)
		}
		known[e.Name] = environ.Expand(e.Value, func(n string) (string, bool) { v, ok := known[n]; return v, ok })
		out = append(out, environ.Var{Name: e.Name, Value: known[e.Name]})
	}
	return out, nil
}

// mounts are a container's volumes, its hosts file and the file of its termination message.
func (s *syncing) mounts(c *corev1.Container, attempt uint32, env []environ.Var) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	taken := map[string]bool{}
	filled := map[string]bool{} // by the agent, which follows the links in them: no container may change those
	for _, v := range s.pod.Spec.Volumes {
		filled[v.Name] = v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	}
	for i, vm := range c.VolumeMounts {
		host, ok := s.in.Volumes[vm.Name]
		if !ok {
			return nil, fmt.Errorf("volumeMounts[%d].name: volume %q is not mounted on the node", i, vm.Name)
		}
		if vm.SubPath != "" || vm.SubPathExpr != "" {
			var err error
			if s.in.SubPath != nil {
				host, err = s.in.SubPath(c, i, env)
			} else {
				host, err = subPath(host, vm.SubPath)
			}
			if err != nil {
				return nil, fmt.Errorf("volumeMounts[%d].subPath: %w", i, err)
			}
		}
		path := vm.MountPath
		if !filepath.IsAbs(path) {
			path = filepath.Join("/", path)
		}
		taken[filepath.Clean(path)] = true
		out = append(out, &runtimeapi.Mount{ContainerPath: path, HostPath: host, Readonly: vm.ReadOnly || filled[vm.Name], Propagation: propagation(vm.MountPropagation)})
	}
	hosts, err := s.hostsFile()
	if err != nil {
		return nil, err
	}
	if hosts != "" && !taken["/etc/hosts"] {
		readOnly := c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil && *c.SecurityContext.ReadOnlyRootFilesystem
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: hosts, Readonly: readOnly})
	}
	message, err := s.makeMessageFile(c, attempt)
	if err != nil {
		return nil, err
	}
	if message != "" && !taken[filepath.Clean(c.TerminationMessagePath)] {
		out = append(out, &runtimeapi.Mount{ContainerPath: c.TerminationMessagePath, HostPath: message})
	}
	return out, nil
}

func propagation(p *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if p != nil {
		switch *p {
		case corev1.MountPropagationHostToContainer:
			return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case corev1.MountPropagationBidirectional:
			return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// subPath is a path below a volume that no link in it leads out of when it is looked up.
func subPath(volume, sub string) (string, error) {
	root, err := os.OpenRoot(volume)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // it was only looked into
	if _, err := root.Stat(sub); err != nil {
		return "", err
	}
	return filepath.Join(volume, sub), nil
}

const (
	cpuPeriod  = 100_000 // microseconds
	minShares  = 2
	maxShares  = 262_144
	minQuota   = 1_000
	guaranteed = -997
	bestEffort = 1000
)

// resources are a container's limits as cgroups know them.
func resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	cpu, hasCPU := c.Resources.Requests[corev1.ResourceCPU]
	limit, limited := c.Resources.Limits[corev1.ResourceCPU]
	if !hasCPU && limited {
		cpu = limit
	}
	out := &runtimeapi.LinuxContainerResources{CpuShares: shares(cpu), CpuPeriod: cpuPeriod, OomScoreAdj: oomScore(pod)}
	if milli := limit.MilliValue(); limited && milli > 0 {
		out.CpuQuota = max(milli*cpuPeriod/1000, minQuota)
	}
	if memory, ok := c.Resources.Limits[corev1.ResourceMemory]; ok {
		out.MemoryLimitInBytes = memory.Value()
	}
	return out
}

func shares(cpu resource.Quantity) int64 {
	return min(max(cpu.MilliValue()*1024/1000, minShares), maxShares)
}

// oomScore says who is killed first when the node runs out of memory: those who asked for nothing.
// The kubelet grades those in between by their share of the node's memory; here they are in the
// middle.
func oomScore(pod *corev1.Pod) int64 {
	switch qos(pod) {
	case corev1.PodQOSGuaranteed:
		return guaranteed
	case corev1.PodQOSBestEffort:
		return bestEffort
	}
	return (bestEffort + 3) / 2
}

// qos is the class in the pod's status, which its API server sets and a dev server may not.
func qos(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	any, all := false, true
	for _, c := range pod.Spec.Containers {
		any = any || len(c.Resources.Requests)+len(c.Resources.Limits) > 0
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, ok := c.Resources.Limits[name]
			request, asked := c.Resources.Requests[name]
			all = all && ok && (!asked || request.Cmp(limit) == 0)
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case all:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}
