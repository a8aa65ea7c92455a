package podworker

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// Syncer does the work of one pod. Calls for one pod never overlap. A call whose
// context is cancelled must return soon; what it left undone is done by the next.
type Syncer interface {
	// SyncPod brings the pod towards running. terminal says that it has run its
	// course, and terminating begins.
	SyncPod(ctx context.Context, kind podsync.Kind, pod *corev1.Pod, status *container.PodStatus) (terminal bool, err error)
	// SyncTerminatingPod ends what runs of the pod within grace seconds, never nil.
	// It returns nil only when nothing runs. change, when not nil, belongs into the pod's status.
	SyncTerminatingPod(ctx context.Context, pod *corev1.Pod, status *container.PodStatus, grace *int64, change StatusFunc) error
	// SyncTerminatingRuntimePod is the same for a pod of which only the runtime knows.
	SyncTerminatingRuntimePod(ctx context.Context, running container.Pod) error
	// SyncTerminatedPod frees what the pod had besides containers, and tells its final status.
	SyncTerminatedPod(ctx context.Context, pod *corev1.Pod, status *container.PodStatus) error
}

// StatusFunc changes the status of a pod that is killed, to say why.
type StatusFunc func(*corev1.PodStatus)

// KillOptions say how a pod is killed.
type KillOptions struct {
	// Grace in seconds overrides the pod's own when it is shorter.
	Grace *int64
	// Evict says that the node wants to be rid of it.
	Evict bool
	// Status, when set, changes the pod's status.
	Status StatusFunc
	// Done, when set, is called once nothing of the pod runs any more.
	Done func()
}

// Update is news of a pod. Pod or RunningPod is set; a RunningPod can only be
// killed, and is not looked at when Pod is set.
type Update struct {
	Kind       podsync.Kind
	Pod        *corev1.Pod
	RunningPod *container.Pod
	Kill       *KillOptions
}

// uid names the pod that u is about.
func (u Update) uid() types.UID {
	if u.Pod != nil {
		return u.Pod.UID
	}
	return u.RunningPod.UID
}
