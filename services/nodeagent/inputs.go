package nodeagent

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// inputs are what a pod's containers need beyond its spec.
func (a *Agent) inputs(pod *corev1.Pod, mounts volume.Mounts) kuberuntime.Inputs {
	return kuberuntime.Inputs{
		Volumes: kuberuntime.Volumes(mounts),
		SubPath: func(c *corev1.Container, i int, env []kuberuntime.EnvVar) (string, error) {
			return a.volumes.SubPath(pod, mounts, c, i, env)
		},
		Environment: func(ctx context.Context, c *corev1.Container, podIPs []string) ([]kuberuntime.EnvVar, error) {
			facts := a.facts(nil)
			facts.PodIPs = podIPs
			if len(podIPs) == 0 {
				facts.PodIPs = facts.HostIPs // on the node's network its addresses are the pod's
			}
			facts.Services = a.services(ctx, pod)
			made, err := environ.Make(ctx, pod, c, facts, a.objects)
			if err != nil {
				return nil, err
			}
			if len(made.Skipped) > 0 {
				a.warn(pod, reasonBadEnv, "keys that no environment can hold were left out: "+strings.Join(made.Skipped, ", "))
			}
			return made.Vars, nil
		},
	}
}

// servicesLimit is how long a container waits for the services of a namespace to be read.
const servicesLimit = 5 * time.Second

// services tell a pod's containers where the API server is, and the services of its namespace if it
// wants links to them. While the API server does not answer they are those of before: a container
// that crashed is started again without it.
func (a *Agent) services(ctx context.Context, pod *corev1.Pod) map[string]string {
	var all []corev1.Service
	var namespaces []string
	if host, port, ok := hostPort(a.cfg.PodAPI); ok {
		all = append(all, environ.API(host, port))
	} else {
		namespaces = append(namespaces, corev1.NamespaceDefault) // the API server's service is there
	}
	if environ.Links(pod) && !slices.Contains(namespaces, pod.Namespace) {
		namespaces = append(namespaces, pod.Namespace)
	}
	for _, namespace := range namespaces {
		limited, cancel := context.WithTimeout(ctx, servicesLimit)
		some, err := a.objects.Services(limited, namespace)
		cancel()
		a.mu.Lock()
		if err == nil {
			a.linked[namespace] = some
		}
		some, known := a.linked[namespace]
		a.mu.Unlock()
		if !known && ctx.Err() == nil {
			a.warn(pod, reasonNoServices, "containers start without the variables of services: "+err.Error())
		}
		all = append(all, some...)
	}
	return environ.Services(pod, all)
}

// forgetServices drops the services of namespaces in which no pod is wanted.
func (a *Agent) forgetServices(wanted map[types.UID]*corev1.Pod) {
	used := map[string]bool{corev1.NamespaceDefault: true}
	for _, pod := range wanted {
		used[pod.Namespace] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.linked, func(namespace string, _ []corev1.Service) bool { return !used[namespace] })
}
