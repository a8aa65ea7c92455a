package kuberuntime

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Unsupported lists the fields of a pod that this package cannot honour, each error naming one by
// its path. Volumes and environments are not its matter.
func Unsupported(pod *corev1.Pod) []error {
	var out []error
	no := func(bad bool, path *field.Path, why string) {
		if bad {
			out = append(out, field.Forbidden(path, why))
		}
	}
	spec, s := field.NewPath("spec"), &pod.Spec
	no(s.RuntimeClassName != nil && *s.RuntimeClassName != "", spec.Child("runtimeClassName"), "runtime classes are not looked up")
	no(s.HostUsers != nil && !*s.HostUsers, spec.Child("hostUsers"), "user namespaces are not set up")
	no(len(s.ResourceClaims) > 0, spec.Child("resourceClaims"), "devices are not allocated")
	no(s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN, spec.Child("setHostnameAsFQDN"), "the host name is the short one")
	no(s.HostnameOverride != nil && *s.HostnameOverride != "", spec.Child("hostnameOverride"), "the host name is hostname or the pod's name")
	no(s.OS != nil && s.OS.Name != corev1.Linux, spec.Child("os", "name"), "only linux is run")
	no(s.Resources != nil, spec.Child("resources"), "resources are the containers'")
	if sc := s.SecurityContext; sc != nil {
		no(sc.WindowsOptions != nil, spec.Child("securityContext", "windowsOptions"), "only linux is run")
		no(localhost(sc.SeccompProfile), spec.Child("securityContext", "seccompProfile", "type"), "profiles on the node are not looked up")
		for i, c := range sc.Sysctls {
			name, at := strings.ReplaceAll(c.Name, "/", "."), spec.Child("securityContext", "sysctls").Index(i).Child("name")
			no(!safeSysctls[name], at, fmt.Sprintf("%q is not known to touch nobody but the pod", c.Name))
			no(s.HostNetwork && strings.HasPrefix(name, "net."), at, fmt.Sprintf("%q would be the node's on its network", c.Name))
			no(s.HostIPC && strings.HasPrefix(name, "kernel."), at, fmt.Sprintf("%q would be the node's in its IPC namespace", c.Name))
		}
	}
	names := map[string]bool{}
	once := func(name string, path *field.Path) {
		if names[name] { // each would be taken for the other
			out = append(out, field.Duplicate(path.Child("name"), name))
		}
		names[name] = true
	}
	for i := range s.InitContainers {
		at := spec.Child("initContainers").Index(i)
		once(s.InitContainers[i].Name, at)
		out = append(out, unsupportedOf(&s.InitContainers[i], at)...)
	}
	for i := range s.Containers {
		at := spec.Child("containers").Index(i)
		once(s.Containers[i].Name, at)
		out = append(out, unsupportedOf(&s.Containers[i], at)...)
	}
	return out
}

// safeSysctls are those that the kubelet allows unless it is told otherwise: each has a namespace
// of its own and its own bounds.
var safeSysctls = map[string]bool{
	"kernel.shm_rmid_forced": true, "net.ipv4.ip_local_port_range": true, "net.ipv4.tcp_syncookies": true, "net.ipv4.ping_group_range": true,
	"net.ipv4.ip_unprivileged_port_start": true, "net.ipv4.ip_local_reserved_ports": true, "net.ipv4.tcp_keepalive_time": true,
	"net.ipv4.tcp_fin_timeout": true, "net.ipv4.tcp_keepalive_intvl": true, "net.ipv4.tcp_keepalive_probes": true,
	"net.ipv4.tcp_rmem": true, "net.ipv4.tcp_wmem": true,
}

func unsupportedOf(c *corev1.Container, path *field.Path) []error {
	var out []error
	no := func(bad bool, path *field.Path, why string) {
		if bad {
			out = append(out, field.Forbidden(path, why))
		}
	}
	no(!plain(c.Name), path.Child("name"), "files and logs of the container are named after it")
	no(len(c.VolumeDevices) > 0, path.Child("volumeDevices"), "block devices are not passed on")
	no(len(c.Resources.Claims) > 0, path.Child("resources", "claims"), "devices are not allocated")
	for i := range c.RestartPolicyRules {
		no(c.RestartPolicyRules[i].Action != corev1.ContainerRestartRuleActionRestart,
			path.Child("restartPolicyRules").Index(i).Child("action"), "the action is Restart: a pod is not restarted as a whole")
	}
	for i, m := range c.VolumeMounts {
		at := path.Child("volumeMounts").Index(i)
		no(m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled, at.Child("recursiveReadOnly"), "mounts are read-only at their top")
	}
	if sc := c.SecurityContext; sc != nil {
		no(sc.WindowsOptions != nil, path.Child("securityContext", "windowsOptions"), "only linux is run")
		no(localhost(sc.SeccompProfile), path.Child("securityContext", "seccompProfile", "type"), "profiles on the node are not looked up")
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []struct {
			name string
			h    *corev1.LifecycleHandler
		}{{"postStart", l.PostStart}, {"preStop", l.PreStop}} {
			if h.h != nil {
				at := path.Child("lifecycle", h.name)
				no(h.h.HTTPGet != nil, at.Child("httpGet"), "hooks are exec or sleep")
				no(h.h.TCPSocket != nil, at.Child("tcpSocket"), "hooks are exec or sleep")
			}
		}
	}
	return out
}

func localhost(p *corev1.SeccompProfile) bool {
	return p != nil && p.Type == corev1.SeccompProfileTypeLocalhost
}

// Ignored lists what of a pod is not done although it runs, by path and with what that means: one
// Warning Event should say so.
func Ignored(pod *corev1.Pod) []string {
	var out []string
	note := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	s := &pod.Spec
	note(len(s.ImagePullSecrets) > 0 && pulls(pod), "spec.imagePullSecrets: images are pulled without credentials")
	for _, list := range []struct {
		name string
		of   []corev1.Container
	}{{"initContainers", s.InitContainers}, {"containers", s.Containers}} {
		for i, c := range list.of {
			note(len(c.ResizePolicy) > 0 && resized(c.ResizePolicy), "spec.%s[%d].resizePolicy: a change of resources does not restart the container", list.name, i)
		}
	}
	return out
}

func pulls(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return c.ImagePullPolicy != corev1.PullNever
	})
}

// resized says that a policy asks for more than the default, which API servers write into every
// container.
func resized(p []corev1.ContainerResizePolicy) bool {
	return slices.ContainsFunc(p, func(p corev1.ContainerResizePolicy) bool { return p.RestartPolicy == corev1.RestartContainer })
}
