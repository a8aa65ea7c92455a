// Package criruntime is a container runtime that runs nothing: a CRI v1 server
// (RuntimeService and ImageService) whose containers are simulated, thousands of
// them in one process. The node agent speaks to it as it speaks to containerd.
//
// # What a container does
//
// Annotations of its pod say so: those of the sandbox's configuration, or of the
// container's own, which win. An annotation with ".NAME" at its end holds for the
// container NAME and wins over the one without. A value that cannot be read
// makes CreateContainer fail with InvalidArgument and the annotation's name.
//
//	deltaplane.io/run-seconds          whole seconds, a Go duration, or "forever"
//	deltaplane.io/exit-code            0 to 255; 0 when unset
//	deltaplane.io/failure-rate         0 to 1: the chance that a run ends with the exit code (1 when that is unset)
//	deltaplane.io/exit-reason          the reason of an end that is not 0, "OOMKilled" for one; "Error" when unset
//	deltaplane.io/ignore-term          "true": SIGTERM is ignored, so that the end of the grace period brings SIGKILL
//	deltaplane.io/start-error          StartContainer fails with this text, as it does for a command not found
//	deltaplane.io/log                  a line for the container's log
//	deltaplane.io/termination-message  text for the file mounted at the termination message path
//
// Without run-seconds an init container (annotation deltaplane.io/container-kind
// is "init") ends at once with code 0, and annotations without a container's name
// do not concern it. Other containers run for ever when the pod's restart policy
// (deltaplane.io/restart-policy) is Always or unknown, else for one second.
//
// # States
//
//	           StartContainer            run-seconds, TERM, KILL
//	created --------------------> running -------------------------> exited
//	     \---- start-error, log cannot be opened (128, StartError) ----^
//
// SIGTERM ends a container with 143 after [Config.StopDelay], SIGKILL with 137.
//
// # Images
//
// Every image is there, except: "missing/..." cannot be pulled (NotFound),
// "slow/..." has to be pulled, which takes 2 s, "pull/..." has to be pulled, which
// takes [Config.PullDelay], and one that was removed has to be pulled as well. The word may be
// any element of the name's path, so "registry.example/missing/app:1" is missing too.
//
// # Restarts
//
// With [Config.Dir] everything survives the process, kill -9 included: running
// containers go on by the wall clock, and an exit that fell into the time in between is
// dated when it was due.
package criruntime
