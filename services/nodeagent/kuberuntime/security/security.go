package security

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What an unprivileged container does not see, or not write, of /proc and /sys unless it asks for
// procMount Unmasked.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func namespaces(pod *corev1.Pod, hostNetwork bool) *runtimeapi.NamespaceOption {
	n := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if hostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		n.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	return n
}

// Sandbox is a pod's security context for its sandbox.
func Sandbox(pod *corev1.Pod, hostNetwork bool) *runtimeapi.LinuxSandboxSecurityContext {
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, hostNetwork),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if sc := c.SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
			out.Privileged = true
		}
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return out
	}
	out.RunAsUser, out.RunAsGroup = int64Value(sc.RunAsUser), int64Value(sc.RunAsGroup)
	out.SelinuxOptions = selinux(sc.SELinuxOptions)
	out.SupplementalGroups, out.SupplementalGroupsPolicy = groups(sc)
	return out
}

// Container is a container's security context over its pod's. Image is asked which user it runs as.
func Container(pod *corev1.Pod, c *corev1.Container, ns *runtimeapi.NamespaceOption, image *runtimeapi.Image) (*runtimeapi.LinuxContainerSecurityContext, error) {
	own, of := c.SecurityContext, pod.Spec.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	if of == nil {
		of = &corev1.PodSecurityContext{}
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: ns,
		Privileged:       own.Privileged != nil && *own.Privileged,
		ReadonlyRootfs:   own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem,
		NoNewPrivs:       own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		RunAsUser:        int64Value(cmp.Or(own.RunAsUser, of.RunAsUser)),
		RunAsGroup:       int64Value(cmp.Or(own.RunAsGroup, of.RunAsGroup)),
		SelinuxOptions:   selinux(cmp.Or(own.SELinuxOptions, of.SELinuxOptions)),
		MaskedPaths:      maskedPaths, ReadonlyPaths: readonlyPaths,
	}
	if own.ProcMount != nil && *own.ProcMount == corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = nil, nil
	}
	if caps := own.Capabilities; caps != nil {
		out.Capabilities = &runtimeapi.Capability{AddCapabilities: names(caps.Add), DropCapabilities: names(caps.Drop)}
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy = groups(of)
	if out.RunAsUser == nil {
		if uid := image.GetUid(); uid != nil {
			out.RunAsUser = &runtimeapi.Int64Value{Value: uid.GetValue()}
		} else {
			out.RunAsUsername = image.GetUsername()
		}
	}
	if nonRoot := cmp.Or(own.RunAsNonRoot, of.RunAsNonRoot); nonRoot != nil && *nonRoot {
		if err := verifyNonRoot(out); err != nil {
			return nil, err
		}
	}
	var err error
	if out.Seccomp, err = seccomp(cmp.Or(own.SeccompProfile, of.SeccompProfile)); err != nil {
		return nil, err
	}
	if out.Apparmor, err = apparmor(cmp.Or(own.AppArmorProfile, of.AppArmorProfile)); err != nil {
		return nil, err
	}
	return out, nil
}

func verifyNonRoot(sc *runtimeapi.LinuxContainerSecurityContext) error {
	uid := sc.GetRunAsUser()
	if uid == nil && sc.GetRunAsUsername() != "" {
		n, err := strconv.ParseInt(sc.GetRunAsUsername(), 10, 64)
		if err != nil {
			return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", sc.GetRunAsUsername())
		}
		uid = &runtimeapi.Int64Value{Value: n}
	}
	if uid == nil {
		return errors.New("container has runAsNonRoot and image will run as root")
	}
	if uid.GetValue() == 0 {
		return errors.New("container's runAsUser breaks non-root policy")
	}
	return nil
}

// seccomp is unconfined unless a profile is named, as in the kubelet.
func seccomp(p *corev1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case corev1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	}
	return nil, fmt.Errorf("securityContext.seccompProfile.type: %q is not supported", p.Type)
}

// apparmor is the runtime's choice unless a profile is named.
func apparmor(p *corev1.AppArmorProfile) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile != nil {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}, nil
		}
	}
	return nil, fmt.Errorf("securityContext.appArmorProfile.type: %q is not supported", p.Type)
}

func groups(sc *corev1.PodSecurityContext) (ids []int64, policy runtimeapi.SupplementalGroupsPolicy) {
	if sc.FSGroup != nil {
		ids = append(ids, *sc.FSGroup)
	}
	ids = append(ids, sc.SupplementalGroups...)
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		policy = runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return ids, policy
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

func names(in []corev1.Capability) []string {
	out := make([]string, len(in))
	for i, c := range in {
		out[i] = string(c)
	}
	return out
}
