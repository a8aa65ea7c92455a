package podstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// drain is how long statuses that wait are still written once Run is to end.
const drain = 2 * time.Second

// Run writes until ctx ends. What waits then gets two more seconds, unless [Manager.Abort] is
// called.
func (m *Manager) Run(ctx context.Context) error {
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	m.mu.Lock()
	m.abort = cancel
	m.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		t := time.NewTimer(drain)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-writing.Done():
		}
	})()
	var g errgroup.Group
	for range m.cfg.Writers {
		g.Go(func() error {
			for m.next(ctx, writing) {
				continue
			}
			return nil
		})
	}
	err := g.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.pods {
		if e.retry != nil {
			e.retry.Stop()
		}
	}
	return err
}

// next writes one pod; false at the end.
func (m *Manager) next(ctx, writing context.Context) bool {
	if e := m.take(); e != nil {
		m.done(e, m.write(writing, e))
		return writing.Err() == nil
	}
	select {
	case <-m.work:
		return true
	case <-ctx.Done():
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.line) > 0 && writing.Err() == nil
	}
}

// take takes a pod from the line; nil when there is none.
func (m *Manager) take() *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.line) > 0 {
		e := m.pods[m.line[0]]
		m.line = m.line[1:]
		if e == nil {
			continue
		}
		e.queued = false
		if !e.gone && !e.busy {
			e.busy = true
			if len(m.line) > 0 {
				m.signal()
			}
			return e
		}
	}
	return nil
}

// done notes the end of a write. A failed one is tried again later, whatever else
// happens to the pod meanwhile.
func (m *Manager) done(e *entry, res result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := e.seen
	e.busy, e.live, e.seen = false, res.live, nil
	switch {
	case e.gone:
		return
	case res.gone:
		e.gone = true
		return
	case res.err != nil:
		e.live = nil // nobody knows what became of the write
		m.later(e, res.err)
		return
	}
	e.failures = 0
	fresh := seen != nil && (e.live == nil || delta.Compare(seen.ResourceVersion, e.live.ResourceVersion) > 0)
	if fresh {
		e.live = seen
	}
	if e.turn != res.turn {
		m.push(e)
		return
	}
	if !e.since.IsZero() {
		m.metrics.took.Observe(m.cfg.Now().Sub(e.since).Seconds())
		e.since = time.Time{}
	}
	if fresh {
		m.push(e)
	}
}

// later plans the next attempt after a failed one.
func (m *Manager) later(e *entry, err error) {
	wait := max(min(m.cfg.Retry<<min(e.failures, 20), m.cfg.RetryMax), kube.RetryAfter(err))
	e.failures++
	log := m.log.Debug
	if e.failures == 1 {
		log = m.log.Warn
	}
	log("pod status not written", slog.String("namespace", e.namespace), slog.String("pod", e.name), slog.Int("failures", e.failures), slog.Any("error", err))
	e.retry = time.AfterFunc(wait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		e.retry = nil
		m.push(e)
	})
}

// result is what one look at a pod came to: the pod as the API server has it now, nil
// when that is not known, or that it is gone. Turn is what was looked at.
type result struct {
	live *corev1.Pod
	gone bool
	err  error
	turn uint64
}

// rereads is how often a write that met a newer version is recreated at once.
const rereads = 5

// write brings the API server to a pod's status, and ends the pod when that is all that
// is left to do.
func (m *Manager) write(ctx context.Context, e *entry) result {
	m.mu.Lock()
	want, stopped, finished := e.want, e.stopped, e.finished
	res := result{live: e.live, turn: e.turn}
	m.mu.Unlock()
	if want == nil {
		return res
	}
	for range rereads {
		if res.live == nil {
			if res.live, res.err = m.read(ctx, e); res.err != nil || res.live == nil {
				res.gone = res.err == nil
				return res
			}
		}
		merged := Merge(res.live, *want, !stopped, metav1.NewTime(m.cfg.Now()).Rfc3339Copy())
		if equality.Semantic.DeepEqual(merged, res.live.Status) {
			res.err = nil
			break
		}
		if res.live, res.err = m.patch(ctx, res.live, merged); res.err == nil {
			break
		}
		if kube.IsNotFound(res.err) {
			return result{gone: true}
		}
		if !kube.IsConflict(res.err) && !kube.IsInvalid(res.err) { // invalid: perhaps another UID
			return res
		}
		res.live = nil
	}
	if res.err != nil || !finished || !deletable(res.live) {
		return res
	}
	gone, err := m.remove(ctx, res.live)
	return result{live: res.live, gone: gone, err: err, turn: res.turn}
}

// deletable reports whether a pod only waits to be deleted permanently. With grace 0
// it is deleted already, and what holds it are finalizers.
func deletable(pod *corev1.Pod) bool {
	held := len(pod.Finalizers) > 0 && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
	return pod.DeletionTimestamp != nil && terminal(pod.Status.Phase) && !held
}

// read reads a pod; nil without an error when that pod is gone.
func (m *Manager) read(ctx context.Context, e *entry) (*corev1.Pod, error) {
	ctx, end, err := m.call(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := m.api.Get(ctx, kube.Pods.Ref(e.namespace, e.name))
	end("get", err)
	if kube.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pod, err := decode(raw)
	if err != nil || pod.UID != e.uid {
		return nil, err
	}
	return pod, nil
}

func decode(raw []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(raw, pod); err != nil {
		return nil, fmt.Errorf("podstatus: the API server's answer: %w", err)
	}
	return pod, nil
}

// patch writes the difference between a pod's status and the one it should have, if the
// pod still is the one that was looked at.
func (m *Manager) patch(ctx context.Context, live *corev1.Pod, status corev1.PodStatus) (*corev1.Pod, error) {
	body, err := Patch(live, status)
	if err != nil {
		return nil, err
	}
	ctx, end, err := m.call(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := m.api.Patch(ctx, kube.Pods.Ref(live.Namespace, live.Name).Status(), kube.StrategicPatch, body, kube.WriteOptions{})
	end("patch", err)
	if err != nil {
		return nil, err
	}
	return decode(raw)
}

// Patch is the strategic merge patch of a pod's status sub-resource that leads from the
// status of live to status, with the UID and the resource version of live as preconditions. Fields
// of the status that this version of the API does not know stay as they are.
func Patch(live *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	from, err := json.Marshal(corev1.Pod{Status: live.Status})
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: live.UID, ResourceVersion: live.ResourceVersion}, Status: status})
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(from, to, corev1.Pod{})
}

// remove deletes a pod permanently; false when finalizers still hold it.
func (m *Manager) remove(ctx context.Context, pod *corev1.Pod) (gone bool, err error) {
	ctx, end, err := m.call(ctx)
	if err != nil {
		return false, err
	}
	_, err = m.api.Delete(ctx, kube.Pods.Ref(pod.Namespace, pod.Name), kube.DeleteOptions{UID: string(pod.UID), Grace: new(int64(0))})
	end("delete", err)
	if kube.IsNotFound(err) {
		return true, nil
	}
	return err == nil && len(pod.Finalizers) == 0, err
}

// call waits for its turn and bounds one call; the returned function counts it.
func (m *Manager) call(ctx context.Context) (context.Context, func(verb string, err error), error) {
	if err := m.limit.Wait(ctx); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	return ctx, func(verb string, err error) {
		cancel()
		m.metrics.call(verb, err)
	}, nil
}
