package environ

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The API server's own service, which every pod is given.
const (
	apiService   = "kubernetes"
	apiNamespace = corev1.NamespaceDefault
)

// Services are the variables that tell a pod's containers where services are: the API server's,
// and those of the pod's namespace unless it wants no links. A service without an address of its
// own has none. All may hold services of any namespace.
func Services(pod *corev1.Pod, all []corev1.Service) map[string]string {
	links := Links(pod)
	named := map[string]*corev1.Service{}
	for i := range all {
		s := &all[i]
		switch {
		case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0:
		case s.Namespace == apiNamespace && s.Name == apiService:
			if named[apiService] == nil {
				named[apiService] = s
			}
		case s.Namespace == pod.Namespace && links:
			named[s.Name] = s // one of the API server's name too, as with the kubelet
		}
	}
	out := map[string]string{}
	for _, s := range named {
		link(out, s)
	}
	return out
}

// Links reports whether a pod wants the variables of its namespace's services.
func Links(pod *corev1.Pod) bool {
	return pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
}

// API is the API server's service when pods reach it at host:port.
func API(host string, port int32) corev1.Service {
	s := corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: host, Ports: []corev1.ServicePort{{Name: "https", Port: port}}}}
	s.Namespace, s.Name = apiNamespace, apiService
	return s
}

func link(out map[string]string, s *corev1.Service) {
	name, ip := variable(s.Name), s.Spec.ClusterIP
	out[name+"_SERVICE_HOST"] = ip
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		port := strconv.Itoa(int(p.Port))
		protocol := strings.ToLower(string(p.Protocol))
		if protocol == "" {
			protocol = "tcp"
		}
		to := protocol + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			out[name+"_SERVICE_PORT"], out[name+"_PORT"] = port, to
		}
		if p.Name != "" {
			out[name+"_SERVICE_PORT_"+variable(p.Name)] = port
		}
		at := fmt.Sprintf("%s_PORT_%s_%s", name, port, strings.ToUpper(protocol))
		out[at], out[at+"_PROTO"], out[at+"_PORT"], out[at+"_ADDR"] = to, protocol, port, ip
	}
}

// variable is a name as a part of a variable's.
func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
