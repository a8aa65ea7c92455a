package podworker

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// loop is a worker's goroutine. ctx ends it between steps, steps cancels the one under way.
func (p *Pool) loop(ctx, steps context.Context, w *worker) {
	var last time.Time // the end of the last step
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.stop:
			return
		case <-w.signal:
		}
		if ctx.Err() != nil {
			return
		}
		p.step(steps, w, &last)
	}
}

// step takes the update that waits, acts on it, and decides what is next.
func (p *Pool) step(ctx context.Context, w *worker, last *time.Time) {
	p.mu.Lock()
	work, ok := w.life.Next()
	if !ok {
		p.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.cancel = cancel
	change := w.status
	if !w.begun {
		w.begun = true
		p.m.start.Observe(p.cfg.Now().Sub(w.seen).Seconds())
	}
	p.mu.Unlock()

	ended, err := p.act(ctx, w, work, change, last)
	p.complete(ctx, w, work, ended, err)
}

// act calls the syncer. It waits for a status newer than the last step's end.
func (p *Pool) act(ctx context.Context, w *worker, work podsync.Work[body], change StatusFunc, last *time.Time) (ended bool, err error) {
	defer func() {
		// One pod's step must not end the agent of all.
		if r := recover(); r != nil {
			err = fmt.Errorf("podworker: panic in a step: %v", r)
			p.m.panics.Inc()
			p.cfg.Log.Error("pod step panicked", slog.String(telemetry.KeyUID, string(w.uid)),
				slog.Any(telemetry.KeyPanic, r), slog.String(telemetry.KeyStack, string(debug.Stack())))
		}
	}()
	if work.Update.Orphan {
		err = p.syncer.SyncTerminatingRuntimePod(ctx, *work.Update.Body.running)
		*last = p.cfg.Now()
		return false, err
	}
	p.refresh(w, *last)
	var status *container.PodStatus
	if status, err = p.cache.GetNewerThan(ctx, w.uid, *last); err != nil {
		return false, fmt.Errorf("podworker: status: %w", err)
	}
	pod := work.Update.Body.pod
	switch work.State {
	case podsync.Terminated:
		err = p.syncer.SyncTerminatedPod(ctx, pod, status)
	case podsync.Terminating:
		err = p.syncer.SyncTerminatingPod(ctx, pod, status, &work.Grace, change)
	default:
		ended, err = p.syncer.SyncPod(ctx, work.Update.Kind, pod, status)
	}
	*last = p.cfg.Now()
	return ended, err
}

// refresh asks for a new look at a pod that was not looked at since its last step,
// so that a step does not wait for the next list of all pods.
func (p *Pool) refresh(w *worker, last time.Time) {
	if p.cfg.Refresh == nil || last.IsZero() {
		return
	}
	if s, err := p.cache.Get(w.uid); err != nil || s == nil || !s.At.After(last) {
		p.cfg.Refresh(w.uid)
	}
}

// complete settles a step: the next one is due at once, later, or never.
func (p *Pool) complete(ctx context.Context, w *worker, work podsync.Work[body], ended bool, err error) {
	result := podsync.Succeeded
	switch {
	case err != nil:
		result = podsync.Failed
	case ended:
		result = podsync.Ended
	}
	stopped := cancelled(ctx, err)

	p.mu.Lock()
	w.cancel = nil
	moved, gone := w.life.Complete(result)
	now := p.cfg.Now()
	var done []func()
	if moved && work.State == podsync.Terminating {
		done, w.done, w.status = w.done, nil, nil
	}
	if w.life.State() == podsync.Finished {
		p.forget(w, gone)
	} else {
		p.setDue(w, now.Add(p.cfg.Waits.After(err, moved, now, p.cfg.Random())))
		p.wake(w)
	}
	p.mu.Unlock()

	for _, f := range done {
		f()
	}
	if begin := work.Update.Begin; !begin.IsZero() {
		operation := work.Update.Kind.String()
		if work.State == podsync.Terminated {
			operation = "terminated"
		}
		p.m.duration.WithLabelValues(operation).Observe(now.Sub(begin).Seconds())
	}
	if err != nil && !stopped {
		p.failed(ctx, w, work.Update.Body.pod, work.State, err)
	}
}

func (p *Pool) failed(ctx context.Context, w *worker, pod *corev1.Pod, state podsync.State, err error) {
	attrs := []slog.Attr{
		slog.String(telemetry.KeyUID, string(w.uid)), slog.String(telemetry.KeyReason, state.String()), telemetry.Err(err),
	}
	level := slog.LevelWarn
	if _, ok := podsync.BackoffUntil(err); ok {
		level = slog.LevelDebug // the pod's own Events tell of it
	}
	if pod != nil {
		attrs = append(attrs, slog.String(telemetry.KeyKey, pod.Namespace+"/"+pod.Name))
	}
	p.cfg.Log.LogAttrs(ctx, level, "pod step failed", attrs...)
	if p.cfg.Failed != nil {
		p.cfg.Failed(pod, err)
	}
}
