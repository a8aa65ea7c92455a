package devcluster

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The steps of a pod's life, as a kubelet reports them:
//
//	Pending -start-> Running -stop-> Succeeded | Failed
//	                    ^  \-stop-> Running, container waiting -restart-\
//	                    \-----------------------------------------------/
//	any -terminate-> Succeeded | Failed (deleted)

// start reports that the containers run.
func start(p *corev1.Pod, now metav1.Time) {
	p.Status.Phase = corev1.PodRunning
	if p.Status.StartTime == nil {
		p.Status.StartTime = new(now.Rfc3339Copy())
	}
	p.Status.HostIP = hostIP(p.Spec.NodeName)
	p.Status.HostIPs = []corev1.HostIP{{IP: p.Status.HostIP}}
	p.Status.PodIP = podIP(p)
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	p.Status.ContainerStatuses = make([]corev1.ContainerStatus, len(p.Spec.Containers))
	for i, c := range p.Spec.Containers {
		p.Status.ContainerStatuses[i] = corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "dev://" + c.Image, ContainerID: fmt.Sprintf("dev://%s/%s/0", p.UID, c.Name),
		}
	}
	p.Status.InitContainerStatuses = nil
	for _, c := range p.Spec.InitContainers {
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "dev://" + c.Image, ContainerID: fmt.Sprintf("dev://%s/%s/0", p.UID, c.Name), Ready: true,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}},
		})
	}
	condition(p, corev1.PodInitialized, true, "", now)
	running(p, now)
}

// restart reports that the containers run again.
func restart(p *corev1.Pod, now metav1.Time) {
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		c.RestartCount++
		c.ContainerID = fmt.Sprintf("dev://%s/%s/%d", p.UID, c.Name, c.RestartCount)
	}
	running(p, now)
}

func running(p *corev1.Pod, now metav1.Time) {
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
		c.Ready, c.Started = true, new(true)
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[startedAnnotation] = now.UTC().Format(time.RFC3339Nano)
	condition(p, corev1.ContainersReady, true, "", now)
	condition(p, corev1.PodReady, true, "", now)
}

// stop reports the end of a run: the pod's end, or a wait before the next run.
func stop(p *corev1.Pod, now metav1.Time, code int32) {
	again := p.Spec.RestartPolicy == corev1.RestartPolicyAlways || (p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && code != 0)
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		ended := finishedState(c, code, reason, now)
		c.State = ended
		if again {
			c.LastTerminationState = ended
			c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s restarting failed container", backoff(c.RestartCount)),
			}}
		}
		c.Ready, c.Started = false, new(false)
	}
	if again {
		condition(p, corev1.ContainersReady, false, "ContainersNotReady", now)
		condition(p, corev1.PodReady, false, "ContainersNotReady", now)
		return
	}
	ended(p, now, code == 0)
}

// terminate reports that a deleted pod's containers were stopped; one that would have
// run on is Failed with the exit code of SIGTERM, as on a real node.
func terminate(p *corev1.Pod, now metav1.Time) {
	const sigterm = 143
	failed := len(p.Status.ContainerStatuses) == 0 || slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated == nil || c.State.Terminated.ExitCode != 0
	})
	for i := range p.Status.ContainerStatuses {
		c := &p.Status.ContainerStatuses[i]
		if c.State.Terminated == nil {
			c.State = finishedState(c, sigterm, "Error", now)
		}
		c.Ready, c.Started = false, new(false)
	}
	ended(p, now, !failed)
}

// reject ends a pod whose annotations cannot be read.
func reject(p *corev1.Pod, now metav1.Time, fault error) {
	p.Status.Reason, p.Status.Message = "InvalidAnnotation", fault.Error()
	ended(p, now, false)
}

func finishedState(c *corev1.ContainerStatus, code int32, reason string, now metav1.Time) corev1.ContainerState {
	at := now
	if c.State.Running != nil {
		at = c.State.Running.StartedAt
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, StartedAt: at, FinishedAt: now, ContainerID: c.ContainerID,
	}}
}

func ended(p *corev1.Pod, now metav1.Time, well bool) {
	p.Status.Phase = corev1.PodFailed
	reason := "PodFailed"
	if well {
		p.Status.Phase, reason = corev1.PodSucceeded, "PodCompleted"
	}
	condition(p, corev1.ContainersReady, false, reason, now)
	condition(p, corev1.PodReady, false, reason, now)
}

func condition(p *corev1.Pod, kind corev1.PodConditionType, is bool, reason string, now metav1.Time) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	setPodCondition(p, corev1.PodCondition{Type: kind, Status: status, Reason: reason}, now)
}

// podIP derives an address from the pod's identity; two pods may share one.
func podIP(p *corev1.Pod) string {
	h := fnv.New32a()
	fmt.Fprint(h, p.UID)
	n := h.Sum32()
	return fmt.Sprintf("10.244.%d.%d", n>>8&0xff, n&0xff)
}

func hostIP(node string) string {
	h := fnv.New32a()
	fmt.Fprint(h, node)
	n := h.Sum32()
	return fmt.Sprintf("192.168.%d.%d", n>>8&0xff, n&0xff)
}
