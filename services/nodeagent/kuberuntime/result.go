package kuberuntime

import (
	"errors"
	"fmt"
	"time"
)

// The reasons why a container waits, as they stand in a pod's status.
const (
	ReasonCrashLoopBackOff           = "CrashLoopBackOff"
	ReasonImagePullBackOff           = "ImagePullBackOff"
	ReasonErrImagePull               = "ErrImagePull"
	ReasonErrImageNeverPull          = "ErrImageNeverPull"
	ReasonInvalidImageName           = "InvalidImageName"
	ReasonImageInspectError          = "ImageInspectError"
	ReasonCreateContainerConfigError = "CreateContainerConfigError"
	ReasonCreateContainerError       = "CreateContainerError"
	ReasonRunContainerError          = "RunContainerError"
	ReasonPostStartHookError         = "PostStartHookError"
	ReasonCreatePodSandboxError      = "CreatePodSandboxError"
	ReasonKillPodSandboxError        = "KillPodSandboxError"
	ReasonKillContainerError         = "KillContainerError"
)

// ErrStale says that a sync acted on an observation older than what the runtime
// holds: nothing was done, and a sync on a newer one is due at once.
var ErrStale = errors.New("kuberuntime: the observation of the pod is older than its containers")

// WaitReason is why a container does not run yet.
type WaitReason struct{ Reason, Message string }

// Result is what a sync came to.
type Result struct {
	// Err is nil when the pod is as it should be or on its way; else everything that failed, joined.
	// [*BackoffError] and [*ContainerError] can be found in it with errors.As.
	Err error
	// Waiting are the containers that could not be started, by name.
	Waiting map[string]WaitReason
	// Changed says that something was started, stopped or made: the pod should be looked at again.
	Changed bool
}

// BackoffError says that a container waits until Expiry.
type BackoffError struct {
	// Expiry is when the wait is over.
	Expiry time.Time
	// Reason is CrashLoopBackOff or ImagePullBackOff.
	Reason  string
	Message string
}

func (e *BackoffError) Error() string { return e.Reason + ": " + e.Message }

// BackoffUntil is Expiry, in the words of core/podsync.
func (e *BackoffError) BackoffUntil() time.Time { return e.Expiry }

// ContainerError says why something of a pod could not be started or stopped.
type ContainerError struct {
	// Container is the container's name; "" is the pod's sandbox.
	Container string
	Reason    string
	Message   string
	// Err is the cause; nil when there is none but the message.
	Err error
}

func (e *ContainerError) Error() string {
	if e.Container == "" {
		return fmt.Sprintf("%s: %s", e.Reason, e.Message)
	}
	return fmt.Sprintf("container %q: %s: %s", e.Container, e.Reason, e.Message)
}

func (e *ContainerError) Unwrap() error { return e.Err }
