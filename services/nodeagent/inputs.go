package nodeagent

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
