package chart

import (
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestEveryContainerIsConfined holds every container of every case to the same: no rights of the
// host, nothing to write to but volumes, probes, and limits.
func TestEveryContainerIsConfined(t *testing.T) { //nolint:paralleltest // Helm keeps its settings in variables
	for name, args := range cases {
		for _, w := range workloads(objects(t, args)) {
			pod := w.template.Spec
			fault := func(what string) { t.Errorf("%s: %s: %s", name, w.name, what) }
			switch s := pod.SecurityContext; {
			case s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0:
				fault("may run as root")
			case s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
				fault("has no seccomp profile")
			}
			if pod.HostNetwork || pod.HostPID || pod.HostIPC {
				fault("shares something with the host")
			}
			if pod.AutomountServiceAccountToken == nil || pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
				fault("does not say whether it has a token, or has links of services, which begin as settings do")
			}
			if wants := strings.HasSuffix(w.name, "-reflector") || strings.HasSuffix(w.name, "-controllers") || strings.HasSuffix(w.name, "-gateway"); *pod.AutomountServiceAccountToken != wants {
				fault("has a token of the API server, or lacks one")
			}
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				fault := func(what string) { fault(c.Name + ": " + what) }
				s := c.SecurityContext
				if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
					fault("may write to its image")
				}
				if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Privileged != nil && *s.Privileged {
					fault("may gain privileges")
				}
				if s == nil || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
					fault("has capabilities")
				}
				if c.LivenessProbe == nil || c.ReadinessProbe == nil || c.StartupProbe == nil {
					fault("lacks a probe")
				}
				if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
					fault("lacks requests or limits")
				}
				if c.Image == "" || strings.HasSuffix(c.Image, ":") {
					fault("has no image")
				}
				ports := map[string]bool{}
				for _, p := range c.Ports {
					ports[p.Name] = true
				}
				for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
					if p != nil && p.HTTPGet != nil && !ports[p.HTTPGet.Port.StrVal] || p != nil && p.TCPSocket != nil && !ports[p.TCPSocket.Port.StrVal] {
						fault("is asked on a port that it does not have")
					}
				}
				volumes := map[string]bool{}
				for _, v := range pod.Volumes {
					volumes[v.Name] = true
				}
				for _, v := range w.claims {
					volumes[v.Name] = true
				}
				for _, m := range c.VolumeMounts {
					if !volumes[m.Name] {
						fault("mounts " + m.Name + ", which is not there")
					}
				}
			}
		}
	}
}

// Accounts, roles, services, config maps and the Secrets of certificates are there
// where something names them.
func TestEveryReferenceResolves(t *testing.T) { //nolint:paralleltest // see above
	for name, args := range cases {
		all := objects(t, args)
		there := map[string]bool{}
		for _, o := range all {
			if there[o.name()] {
				if _, namespaced := o.Object.(*rbacv1.RoleBinding); !namespaced {
					if _, namespaced := o.Object.(*rbacv1.Role); !namespaced {
						t.Errorf("%s: %s is there twice", name, o.name())
					}
				}
			}
			there[o.name()] = true
			if c, is := o.Object.(interface{ GetNamespace() string }); is && c.GetNamespace() == "" && !strings.HasPrefix(o.name(), "ClusterRole") && !strings.HasPrefix(o.name(), "Mutating") {
				t.Errorf("%s: %s has no namespace", name, o.name())
			}
		}
		need := func(who, what string) {
			if !there[what] {
				t.Errorf("%s: %s names %s, which is not there", name, who, what)
			}
		}
		bound := map[string]bool{}
		for _, o := range all {
			switch b := o.Object.(type) {
			case *rbacv1.ClusterRoleBinding:
				need(b.Name, "ClusterRole "+b.RoleRef.Name)
				need(b.Name, "ServiceAccount "+b.Subjects[0].Name)
				bound[b.RoleRef.Name] = true
			case *rbacv1.RoleBinding:
				need(b.Name, "Role "+b.RoleRef.Name)
				need(b.Name, "ServiceAccount "+b.Subjects[0].Name)
			case *networkingv1.NetworkPolicy:
				if !slices.ContainsFunc(workloads(all), func(w workload) bool { return selects(b.Spec.PodSelector.MatchLabels, w.template.Labels) }) {
					t.Errorf("%s: the policy %s is of no pods", name, b.Name)
				}
			case *policyv1.PodDisruptionBudget:
				if !slices.ContainsFunc(workloads(all), func(w workload) bool {
					return selects(b.Spec.Selector.MatchLabels, w.template.Labels) && w.replicas > 1
				}) {
					t.Errorf("%s: the budget %s is of no pods, or of a single one", name, b.Name)
				}
			case *corev1.Service:
				var ports []string
				for _, w := range workloads(all) {
					if selects(b.Spec.Selector, w.template.Labels) {
						for _, c := range w.template.Spec.Containers {
							for _, p := range c.Ports {
								ports = append(ports, p.Name)
							}
						}
					}
				}
				for _, p := range b.Spec.Ports {
					if !slices.Contains(ports, p.TargetPort.StrVal) {
						t.Errorf("%s: the service %s has the port %s, its pods have %v", name, b.Name, p.TargetPort.StrVal, ports)
					}
				}
			}
		}
		issued := map[string]bool{}
		for _, o := range all {
			if c := certificate(o); c != "" {
				issued[c] = true
			}
		}
		for _, w := range workloads(all) {
			if !selects(w.selector, w.template.Labels) {
				t.Errorf("%s: %s does not select its own pods", name, w.name)
			}
			if w.service != "" {
				need(w.name, "Service "+w.service)
			}
			if account := w.template.Spec.ServiceAccountName; account != "" && account != "default" {
				need(w.name, "ServiceAccount "+account)
			}
			for _, v := range w.template.Spec.Volumes {
				if v.ConfigMap != nil {
					need(w.name, "ConfigMap "+v.ConfigMap.Name)
				}
				if v.Secret != nil && len(issued) > 0 && !issued[v.Secret.SecretName] {
					t.Errorf("%s: %s mounts the secret %s, which no certificate has", name, w.name, v.Secret.SecretName)
				}
			}
		}
		for _, o := range all {
			if r, is := o.Object.(*rbacv1.ClusterRole); is && o.source != "callers.yaml" && !bound[r.Name] {
				t.Errorf("%s: nobody has the role %s", name, r.Name)
			}
		}
	}
}

// TestOurProgramTakesTheFlagsOfEveryContainer has the program read them, with --help last.
func TestOurProgramTakesTheFlagsOfEveryContainer(t *testing.T) { //nolint:paralleltest // see above
	takes := func(args []string) error {
		cmd := exec.Command(program(t), append(slices.Clone(args), "--help")...)
		out, err := cmd.CombinedOutput()
		if err == nil && !strings.Contains(string(out), "deltaplane serve "+args[1]) {
			t.Fatalf("%v is answered %s", args, out)
		}
		return err
	}
	checked := map[string]bool{}
	for name, args := range cases {
		for _, w := range workloads(objects(t, args)) {
			for _, c := range w.template.Spec.Containers {
				if len(c.Command) > 0 || checked[strings.Join(c.Args, " ")] {
					continue // NATS and Redis, or the same as before
				}
				checked[strings.Join(c.Args, " ")] = true
				if len(c.Args) < 3 || c.Args[0] != "serve" {
					t.Fatalf("%s: %s runs %v", name, w.name, c.Args)
				}
				if err := takes(c.Args); err != nil {
					t.Errorf("%s: %s is not taken: %v: %v", name, w.name, c.Args, err)
				}
				for _, e := range c.Env {
					if strings.HasPrefix(e.Name, "DELTAPLANE_") && takes([]string{c.Args[0], c.Args[1], flagOf(e.Name) + "=" + e.Value}) != nil {
						t.Errorf("%s: %s has %s, which is no setting", name, w.name, e.Name)
					}
				}
			}
		}
	}
	if len(checked) < 10 {
		t.Errorf("%d command lines were read", len(checked))
	}
	for _, wrong := range []string{"--no-such-flag", "--nats-replicas=many"} {
		if takes([]string{"serve", "indexer", wrong}) == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}

func flagOf(env string) string {
	return "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(env, "DELTAPLANE_")), "_", "-")
}

func verifies(c *tls.Config) bool { return c != nil && c.ClientAuth == tls.RequireAndVerifyClientCert }

// TestNATSTakesItsConfiguration has the server's own code read it.
func TestNATSTakesItsConfiguration(t *testing.T) {
	t.Setenv("POD_NAME", "deltaplane-nats-0")
	for name, args := range cases {
		for _, o := range objects(t, args) {
			m, is := o.Object.(*corev1.ConfigMap)
			if !is || m.Data["nats.conf"] == "" {
				continue
			}
			path := filepath.Join(t.TempDir(), "nats.conf")
			text := m.Data["nats.conf"]
			secure := strings.Contains(text, "/etc/nats-tls/")
			if secure { // its files are of this test's authority
				text = strings.ReplaceAll(text, "/etc/nats-tls", certificates(t))
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			options, err := natsserver.ProcessConfigFile(path)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, text)
				continue
			}
			if options.MaxPayload != 8<<20 || !options.JetStream || options.ServerName != "deltaplane-nats-0" {
				t.Errorf("%s: payloads of %d, JetStream %v, name %q", name, options.MaxPayload, options.JetStream, options.ServerName)
			}
			if secure && (!verifies(options.TLSConfig) || len(options.Routes) > 0 && !verifies(options.Cluster.TLSConfig)) {
				t.Errorf("%s: anybody may connect", name)
			}
		}
	}
}
