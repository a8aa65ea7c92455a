package kuberuntime

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/dns"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime/security"
)

// sandboxConfig is what a pod's sandbox is made from. It gets the pod's labels and annotations.
func (s *syncing) sandboxConfig(attempt uint32, hostNetwork bool) (*runtimeapi.PodSandboxConfig, error) {
	pod := s.pod
	resolver, err := s.dns()
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:   s.podLabels(pod), Annotations: pod.Annotations,
		LogDirectory: s.logDir(pod.Namespace, pod.Name, pod.UID),
		DnsConfig:    resolver,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: s.cfg.CgroupParent, SecurityContext: security.Sandbox(pod, hostNetwork)},
	}
	if !hostNetwork {
		config.Hostname, _ = s.hostname()
		config.PortMappings = portMappings(pod)
	}
	if sc := pod.Spec.SecurityContext; sc != nil && len(sc.Sysctls) > 0 {
		config.Linux.Sysctls = map[string]string{}
		for _, c := range sc.Sysctls {
			config.Linux.Sysctls[strings.ReplaceAll(c.Name, "/", ".")] = c.Value
		}
	}
	return config, nil
}

func portMappings(pod *corev1.Pod) (out []*runtimeapi.PortMapping) {
	protocols := map[corev1.Protocol]runtimeapi.Protocol{
		"": runtimeapi.Protocol_TCP, corev1.ProtocolTCP: runtimeapi.Protocol_TCP,
		corev1.ProtocolUDP: runtimeapi.Protocol_UDP, corev1.ProtocolSCTP: runtimeapi.Protocol_SCTP,
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				out = append(out, &runtimeapi.PortMapping{
					Protocol: protocols[p.Protocol], ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
				})
			}
		}
	}
	return out
}

// hostname is the pod's host name and domain.
func (s *syncing) hostname() (name, domain string) {
	name = s.pod.Spec.Hostname
	if name == "" {
		name = s.pod.Name
		if len(name) > 63 {
			name = strings.TrimRight(name[:63], "-.")
		}
	}
	if sub := s.pod.Spec.Subdomain; sub != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", sub, s.pod.Namespace, s.cfg.ClusterDomain)
	}
	return name, domain
}

// dns is what the pod resolves names with; nil leaves it the node's file.
func (s *syncing) dns() (*runtimeapi.DNSConfig, error) {
	var node dns.Resolver
	if s.cfg.ResolvConf != "" {
		text, err := os.ReadFile(s.cfg.ResolvConf)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read the node's resolver: %w", err)
		}
		node = dns.Parse(string(text))
	}
	r, whole := dns.Cluster{Servers: s.cfg.DNS, Domain: s.cfg.ClusterDomain}.Of(s.pod, node)
	if !whole {
		s.event(s.pod, corev1.EventTypeWarning, "DNSConfigForming",
			"The bounds of resolvers were exceeded, some name servers or search domains were left out: "+strings.Join(r.Servers, " ")+"; "+strings.Join(r.Searches, " "))
	}
	if len(r.Servers)+len(r.Searches)+len(r.Options) == 0 && s.pod.Spec.DNSPolicy != corev1.DNSNone {
		return nil, nil //nolint:nilnil // the runtime knows the file
	}
	return &runtimeapi.DNSConfig{Servers: r.Servers, Searches: r.Searches, Options: r.Options}, nil
}

// hostsFile writes the pod's /etc/hosts and returns where; "" when pods have no files. On the
// node's network it is the node's with the pod's aliases.
func (s *syncing) hostsFile() (string, error) {
	dir := s.podDir(s.pod.UID)
	if dir == "" {
		return "", nil
	}
	var b bytes.Buffer
	b.WriteString("# Kubernetes-managed hosts file.\n")
	if s.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		if node, err := os.ReadFile("/etc/hosts"); err == nil {
			b.Write(node)
		}
	} else {
		b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		name, domain := s.hostname()
		for _, ip := range s.ips {
			if domain != "" {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, name, domain, name)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, name)
			}
		}
	}
	if len(s.pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range s.pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	path := filepath.Join(dir, "etc-hosts")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("write the pod's hosts file: %w", err)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b.Bytes()) {
		return path, nil
	}
	// Containers hold this very file: it is written over, not replaced.
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return "", fmt.Errorf("write the pod's hosts file: %w", err)
	}
	return path, nil
}
