package environ_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
)

func service(namespace, name, ip string, ports ...corev1.ServicePort) corev1.Service {
	s := corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
	s.Namespace, s.Name = namespace, name
	return s
}

func TestAPodIsGivenTheServicesOfItsNamespaceAndTheAPIServers(t *testing.T) {
	t.Parallel()
	all := []corev1.Service{
		service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443}),
		service("default", "others", "10.96.0.2", corev1.ServicePort{Port: 80}),
		service("ns", "redis-db", "fd00::5", corev1.ServicePort{Port: 6379}, corev1.ServicePort{Name: "udp-one", Port: 53, Protocol: corev1.ProtocolUDP}),
		service("ns", "headless", corev1.ClusterIPNone, corev1.ServicePort{Port: 80}),
		service("ns", "new", "", corev1.ServicePort{Port: 80}),
	}
	api := map[string]string{
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443", "KUBERNETES_PORT": "tcp://10.96.0.1:443",
		"KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443", "KUBERNETES_PORT_443_TCP_PROTO": "tcp", "KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Spec.EnableServiceLinks = "ns", new(false)
	if diff := cmp.Diff(environ.Services(pod, all), api); diff != "" {
		t.Errorf("without links (-got +want):\n%s", diff)
	}
	want := map[string]string{
		"REDIS_DB_SERVICE_HOST": "fd00::5", "REDIS_DB_SERVICE_PORT": "6379", "REDIS_DB_SERVICE_PORT_UDP_ONE": "53", "REDIS_DB_PORT": "tcp://[fd00::5]:6379",
		"REDIS_DB_PORT_6379_TCP": "tcp://[fd00::5]:6379", "REDIS_DB_PORT_6379_TCP_PROTO": "tcp", "REDIS_DB_PORT_6379_TCP_PORT": "6379", "REDIS_DB_PORT_6379_TCP_ADDR": "fd00::5",
		"REDIS_DB_PORT_53_UDP": "udp://[fd00::5]:53", "REDIS_DB_PORT_53_UDP_PROTO": "udp", "REDIS_DB_PORT_53_UDP_PORT": "53", "REDIS_DB_PORT_53_UDP_ADDR": "fd00::5",
	}
	maps.Copy(want, api)
	for _, links := range []*bool{nil, new(true)} {
		pod.Spec.EnableServiceLinks = links
		if diff := cmp.Diff(environ.Services(pod, all), want); diff != "" {
			t.Errorf("with links (-got +want):\n%s", diff)
		}
	}
}

func TestTheAPIServersAddressForPodsReplacesItsService(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace = "default"
	all := []corev1.Service{
		environ.API("api.example.org", 6443), service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443}),
	}
	got := environ.Services(pod, all)
	if got["KUBERNETES_SERVICE_HOST"] != "api.example.org" || got["KUBERNETES_SERVICE_PORT"] != "6443" || len(got) != 8 {
		t.Errorf("%v", got)
	}
}
