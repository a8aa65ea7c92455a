// Package kuberuntime makes a container runtime hold what pods ask for: it is
// the node agent's hand, as kuberuntime is the kubelet's.
//
// A [Manager] lists what runs ([Manager.Pods], [Manager.PodStatus],
// [Manager.Events]), brings one pod nearer to its spec ([Manager.SyncPod]), stops
// one ([Manager.KillPod]) and clears away what is dead
// ([Manager.CollectGarbage]). What a sync does is decided by [Decide], a function
// of the pod and of what was observed of it, and nothing else.
//
// # Never twice
//
// A container is started by its ID, and a runtime starts an ID once. So when the answer of a
// CreateContainer or StartContainer is lost, the next sync starts the container that it finds
// created, instead of making another; before it makes one it asks the runtime once more whether
// there is one that the observation it acts on does not know yet ([ErrStale]); and the attempt's
// number, which runtimes keep unique, stays the same until a container with it was seen. With
// restartPolicy Never a container that may have run is not started again.
//
// # Restarts
//
// Restarts of a container that ended are delayed as the kubelet delays them; the delays are
// kept in a file, so that neither an agent that is restarted nor one that is killed
// starts a crashing container early. The file is written before the container is
// started. Without a readable file the delays are rebuilt from the attempt numbers of
// the dead containers, on the late side.
package kuberuntime
