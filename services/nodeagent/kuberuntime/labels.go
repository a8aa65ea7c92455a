package kuberuntime

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// ours selects what this node's agent made, of one pod when uid is not empty.
func (m *Manager) ours(uid types.UID) map[string]string {
	l := map[string]string{container.LabelNode: m.cfg.Node}
	if uid != "" {
		l[container.LabelPodUID] = string(uid)
	}
	return l
}

// podLabels are those of a pod's sandbox. The pod's own come first: nobody can pose as another pod
// by labels.
func (m *Manager) podLabels(pod *corev1.Pod) map[string]string {
	l := map[string]string{}
	maps.Copy(l, pod.Labels)
	l[container.LabelNode] = m.cfg.Node
	l[container.LabelPodName], l[container.LabelPodNamespace], l[container.LabelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	delete(l, container.LabelContainerName)
	return l
}

func (m *Manager) containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	return map[string]string{
		container.LabelNode: m.cfg.Node, container.LabelPodName: pod.Name, container.LabelPodNamespace: pod.Namespace,
		container.LabelPodUID: string(pod.UID), container.LabelContainerName: c.Name,
	}
}

// annotationImage is the image as the spec names it: runtimes tell what they resolved it to.
const annotationImage = "deltaplane.io/image"

func containerAnnotations(pod *corev1.Pod, c *corev1.Container, attempt int) map[string]string {
	a := map[string]string{}
	maps.Copy(a, pod.Annotations)
	a[container.AnnotationContainerKind], a[container.AnnotationRestartPolicy] = kindOf(pod, c), string(pod.Spec.RestartPolicy)
	a[annotationImage] = c.Image
	a[container.AnnotationHash] = strconv.FormatUint(Hash(c), 16)
	a[container.AnnotationRestartCount] = strconv.Itoa(attempt)
	a[container.AnnotationMessagePath] = c.TerminationMessagePath
	a[container.AnnotationMessagePolicy] = string(c.TerminationMessagePolicy)
	for key, seconds := range map[string]*int64{
		container.AnnotationPodDeletionGrace: pod.DeletionGracePeriodSeconds, container.AnnotationPodTerminateGrace: pod.Spec.TerminationGracePeriodSeconds,
	} {
		delete(a, key)
		if seconds != nil {
			a[key] = strconv.FormatInt(*seconds, 10)
		}
	}
	return a
}

// kindOf is a container's kind, as [container.AnnotationContainerKind] has it.
func kindOf(pod *corev1.Pod, c *corev1.Container) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			if podspec.Sidecar(c) {
				return container.KindSidecar
			}
			return container.KindInit
		}
	}
	return container.KindMain
}

// Hash is that of the parts of a container's spec whose change replaces it while it runs: its name
// and image, as in the kubelet. It is never 0.
func Hash(c *corev1.Container) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q/%q", c.Name, c.Image)
	return max(h.Sum64(), 1)
}

// containerOf reads a container as the runtime lists it; ok is false for one that no agent of this
// node made.
func (m *Manager) containerOf(c *runtimeapi.Container) (out container.Container, pod types.UID, ok bool) {
	out = container.Container{
		ID: c.GetId(), Name: c.GetLabels()[container.LabelContainerName], SandboxID: c.GetPodSandboxId(),
		Image: askedImage(c.GetAnnotations(), c.GetImage()), ImageRef: c.GetImageRef(), State: stateOf(c.GetState()),
		CreatedAt: when(c.GetCreatedAt()), Attempt: c.GetMetadata().GetAttempt(), Hash: hashOf(c.GetAnnotations()),
	}
	pod = types.UID(c.GetLabels()[container.LabelPodUID])
	return out, pod, out.ID != "" && out.Name != "" && pod != "" && c.GetLabels()[container.LabelNode] == m.cfg.Node
}

func sandboxOf(s *runtimeapi.PodSandbox) container.Sandbox {
	return container.Sandbox{
		ID: s.GetId(), Ready: s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: when(s.GetCreatedAt()), Attempt: s.GetMetadata().GetAttempt(),
	}
}

// stateOf takes any number that the CRI does not define for unknown.
func stateOf(s runtimeapi.ContainerState) container.State {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return container.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return container.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return container.Exited
	}
	return container.Unknown
}

// askedImage is the reference in the pod's spec, or what is nearest to it.
func askedImage(annotations map[string]string, i *runtimeapi.ImageSpec) string {
	return cmp.Or(annotations[annotationImage], i.GetUserSpecifiedImage(), i.GetImage())
}

// hashOf is 0, not known, for an annotation that is not a number.
func hashOf(annotations map[string]string) uint64 {
	h, err := strconv.ParseUint(annotations[container.AnnotationHash], 16, 64)
	if err != nil {
		return 0
	}
	return h
}

// restartsOf falls back to the attempt, which is the same number unless somebody else made the
// container.
func restartsOf(annotations map[string]string, attempt uint32) int {
	n, err := strconv.ParseUint(annotations[container.AnnotationRestartCount], 10, 31)
	if err != nil {
		return int(attempt)
	}
	return int(n)
}

// when is a runtime's time in nanoseconds; 0 is none.
func when(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// logDir is the directory of a pod's logs, "" without a log root. API servers allow no
// slash and no dot-dot as a name, but a runtime's labels are not an API server.
func (m *Manager) logDir(namespace, name string, uid types.UID) string {
	dir := namespace + "_" + name + "_" + string(uid)
	if m.cfg.LogRoot == "" || !plain(dir) {
		return ""
	}
	return filepath.Join(m.cfg.LogRoot, dir)
}

// podDir is where a pod's own files lie, "" when there are none.
func (m *Manager) podDir(uid types.UID) string {
	if m.cfg.PodsDir == "" || !plain(string(uid)) {
		return ""
	}
	return filepath.Join(m.cfg.PodsDir, string(uid))
}

// logPath is a container's log, from its pod's log directory.
func logPath(name string, attempt uint32) string {
	return filepath.Join(name, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// plain says that s is one element of a path.
func plain(s string) bool { return filepath.IsLocal(s) && filepath.Base(s) == s && s != "." }
