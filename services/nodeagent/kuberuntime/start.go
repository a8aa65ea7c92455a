package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// start starts one container and notes why it could not.
func (s *syncing) start(ctx context.Context, c *corev1.Container, kind string) error {
	s.metrics.containers.WithLabelValues(kind).Inc()
	err := s.startOne(ctx, c)
	if err == nil {
		return nil
	}
	reason, message := "Error", cri.Message(err)
	if b, ok := errors.AsType[*BackoffError](err); ok {
		reason, message = b.Reason, b.Message
	}
	if e, ok := errors.AsType[*ContainerError](err); ok {
		reason, message = e.Reason, e.Message
	}
	s.metrics.containerErrors.WithLabelValues(kind, reason).Inc()
	s.result.Waiting[c.Name] = WaitReason{reason, message}
	return err
}

func (s *syncing) startOne(ctx context.Context, c *corev1.Container) error {
	last := s.status.Latest(c.Name)
	if last != nil && last.State == container.Created {
		if last.SandboxID == s.sandbox && last.Hash == Hash(c) {
			// Made by a sync whose end is not known. It was let through the back-off then, and is the only
			// one of its number.
			return s.startCreated(ctx, c, last.ID, true)
		}
		if err := s.remove(ctx, last.ID, ""); err != nil {
			return s.failed(c, ReasonCreateContainerError, err)
		}
	}
	event, err := s.restartAllowed(c, s.now())
	if err != nil {
		return err
	}
	image, err := s.ensureImage(ctx, c)
	if err != nil {
		return err
	}
	attempt := s.nextAttempt(c, last)
	config, err := s.containerConfig(ctx, c, attempt, image)
	if err != nil {
		return s.failed(c, ReasonCreateContainerConfigError, err)
	}
	if !event.IsZero() {
		// Before the container is made: an agent killed from here on finds the delay in the file.
		if _, err := s.crash.next(BackoffKey(s.pod, c), s.pod.UID, event, s.now()); err != nil {
			s.metrics.stateErrors.Inc()
			s.log.Warn("restart delays are in memory only", slog.Any("error", err))
		}
	}
	s.result.Changed = true
	r, err := s.rt.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: s.sandbox, Config: config, SandboxConfig: s.config})
	if err == nil && r.GetContainerId() == "" {
		err = errors.New("the runtime gave the container no ID")
	}
	if err != nil {
		return s.failed(c, ReasonCreateContainerError, err)
	}
	s.event(s.pod, corev1.EventTypeNormal, "Created", "Container created: "+c.Name)
	return s.startCreated(ctx, c, r.GetContainerId(), false)
}

// startCreated starts a container by its ID, which a runtime does once: to start one again whose
// answer was lost does no harm. One that the runtime refuses to start and keeps is removed, so that
// it is made again from the spec as it is by then.
func (s *syncing) startCreated(ctx context.Context, c *corev1.Container, id string, found bool) error {
	s.result.Changed = true
	if _, err := s.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		if cri.IsLost(err) {
			return s.failed(c, ReasonRunContainerError, err)
		}
		r, look := s.rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		state := stateOf(r.GetStatus().GetState())
		started := r.GetStatus().GetStartedAt() > 0
		switch {
		case look != nil:
			return s.failed(c, ReasonRunContainerError, err)
		case found && (state == container.Running || state == container.Exited && started):
			// The answer that was lost was a yes.
		default:
			// A start whose answer was lost may still be under way, for as long as a call may take.
			underWay := found && s.now().Sub(when(r.GetStatus().GetCreatedAt())) < 2*cri.ChangeLimit
			if state == container.Created && !underWay {
				if gone := s.remove(ctx, id, ""); gone != nil {
					s.log.Warn("a container that does not start cannot be removed", slog.String("id", id), slog.Any("error", gone))
				}
			}
			return s.failed(c, ReasonRunContainerError, err)
		}
	}
	s.event(s.pod, corev1.EventTypeNormal, "Started", "Container started: "+c.Name)
	return s.postStart(ctx, c, id)
}

// failed is a container's error with its Event.
func (s *syncing) failed(c *corev1.Container, reason string, err error) error {
	s.event(s.pod, corev1.EventTypeWarning, "Failed", "Error: "+cri.Message(err))
	return &ContainerError{Container: c.Name, Reason: reason, Message: cri.Message(err), Err: err}
}

// restartAllowed is the back-off of restarts: it is about the end of the newest dead instance, zero
// when there is none. A [*BackoffError] says until when the container waits.
func (s *syncing) restartAllowed(c *corev1.Container, now time.Time) (ended time.Time, err error) {
	dead := s.lastExited(c.Name)
	if dead == nil {
		return time.Time{}, nil
	}
	key := BackoffKey(s.pod, c)
	ended = endOf(dead)
	if dead.Hash == 0 || dead.Hash == Hash(c) {
		s.crash.rebuild(key, s.pod.UID, dead.RestartCount, dead.CreatedAt, startOf(dead))
	}
	ended = s.crash.counted(key, ended, now)
	left, delay := s.crash.left(key, ended, now)
	if left <= 0 {
		return ended, nil
	}
	s.metrics.backoff.Inc()
	s.event(s.pod, corev1.EventTypeWarning, "BackOff",
		fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, podName(s.pod)))
	return ended, &BackoffError{
		Expiry: ended.Add(delay), Reason: ReasonCrashLoopBackOff,
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, c.Name, podName(s.pod)),
	}
}

func (s *syncing) lastExited(name string) *container.Status {
	for i := range s.status.Containers {
		if c := &s.status.Containers[i]; c.Name == name && c.State == container.Exited {
			return c
		}
	}
	return nil
}

// endOf is when an instance ended, or the latest that is known of it: a runtime that does not say
// must not make it restart at once.
func endOf(c *container.Status) time.Time {
	if !c.FinishedAt.IsZero() {
		return c.FinishedAt
	}
	return startOf(c)
}

func startOf(c *container.Status) time.Time {
	if !c.StartedAt.IsZero() {
		return c.StartedAt
	}
	return c.CreatedAt
}

// nextAttempt is the number of the instance to make. With nothing left of the earlier ones in the
// runtime, as after some restarts of a node, their logs tell.
func (s *syncing) nextAttempt(c *corev1.Container, last *container.Status) uint32 {
	if last != nil {
		if last.State == container.Created {
			return last.Attempt // it was removed just now, and never ran
		}
		return uint32(max(last.RestartCount, int(last.Attempt))) + 1
	}
	dir := s.logDir(s.pod.Namespace, s.pod.Name, s.pod.UID)
	if dir == "" {
		return 0
	}
	files, err := os.ReadDir(filepath.Join(dir, c.Name))
	if err != nil {
		return 0
	}
	next := uint32(0)
	for _, f := range files {
		number, _, _ := strings.Cut(f.Name(), ".")
		if n, err := strconv.ParseUint(number, 10, 31); err == nil {
			next = max(next, uint32(n)+1)
		}
	}
	return next
}

// remove removes a container that is gone permanently, with its log when that is named.
func (m *Manager) remove(ctx context.Context, id, log string) error {
	if _, err := m.rt.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	if log != "" && m.InLogs(log) {
		if err := os.Remove(log); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove the log of container %s: %w", id, err)
		}
	}
	return nil
}

// podName is the kubelet's way to write a pod in messages.
func podName(pod *corev1.Pod) string { return name3(pod.Name, pod.Namespace, pod.UID) }

func name3(name, namespace string, uid types.UID) string {
	return name + "_" + namespace + "(" + string(uid) + ")"
}
