package pleg

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/pleg"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// relist lists all pods, dead containers and sandboxes too, and sees to those that changed.
func (p *PLEG) relist(ctx context.Context) {
	start := time.Now()
	if last := p.health.listed; !last.IsZero() {
		p.metrics.interval.Observe(start.Sub(last).Seconds())
	}
	defer func() { p.metrics.relist.Observe(time.Since(start).Seconds()) }()
	stamp := p.records.Ask()
	limited, cancel := context.WithTimeout(ctx, p.cfg.ListLimit)
	defer cancel()
	list, err := p.runtime.Pods(limited, true)
	if err != nil {
		if ctx.Err() == nil {
			p.log.LogAttrs(ctx, slog.LevelError, "the runtime cannot list its pods", slog.Any(telemetry.KeyError, err))
		}
		p.stream.away = true
		return
	}
	if p.stream.away { // what streams failed for may be over
		p.stream.away, p.stream.next = false, start
	}
	// What the stream told of meanwhile is no change that it kept quiet.
	p.hearAll(ctx)
	p.mu.Lock()
	p.health.listed = start
	p.mu.Unlock()
	p.metrics.lastSeen.Set(float64(start.Unix()))

	changed := p.compare(ctx, list, stamp, start)
	if changed > 0 && p.health.streamed {
		p.distrust(ctx, "a list found changes that the stream did not tell")
	}
	for _, uid := range p.requests.inspections() {
		if p.records.Known(string(uid)) {
			p.want(ctx, uid, true)
		} else {
			p.gone(uid, start)
		}
	}
	p.census.show(p.metrics)
	p.cache.declare(start)
}

// compare takes in a list, and is how many pods changed.
func (p *PLEG) compare(ctx context.Context, list []container.Pod, stamp rules.Stamp, start time.Time) int {
	pods := make(map[types.UID][]rules.Observed, len(list))
	for i := range list {
		// A pod listed twice is one pod.
		uid := list[i].UID
		pods[uid] = appendListed(pods[uid], &list[i])
		s := p.pod(uid)
		s.namespace, s.name = list[i].Namespace, list[i].Name
	}
	changed := 0
	for i := range list {
		uid := list[i].UID
		if p.records.Observe(string(uid), pods[uid], stamp) {
			changed++
			if p.records.Known(string(uid)) {
				p.want(ctx, uid, true)
			} else {
				p.gone(uid, start)
			}
		}
		if p.records.Known(string(uid)) {
			p.census.set(uid, headsOf(list[i]))
		} else { // it went while the list was under way
			p.census.set(uid, heads{})
			p.forget(uid)
		}
	}
	for _, name := range p.records.Pods() {
		uid := types.UID(name)
		if _, ok := pods[uid]; ok {
			continue
		}
		if p.records.Observe(name, nil, stamp) {
			changed++
			if p.records.Known(name) {
				p.want(ctx, uid, true)
			} else {
				p.gone(uid, start)
			}
		}
	}
	return changed
}

// gone sees to a pod of which the runtime has nothing: there is no status to ask for.
func (p *PLEG) gone(uid types.UID, at time.Time) {
	p.census.set(uid, heads{})
	p.cache.absent(uid, at)
	if p.requests.inspected(uid) {
		p.records.Sync(string(uid))
	}
	p.deliver(uid, p.records.Ask())
	if s := p.pods[uid]; s != nil {
		if s.open != nil {
			s.open.void = true
		}
		p.release(uid, s)
	}
}

// deliver publishes what is to be told of a pod up to a stamp. What there is no room for is tried
// again with each tick.
func (p *PLEG) deliver(uid types.UID, upTo rules.Stamp) {
	upTo = max(upTo, p.undelivered[uid]) // an answer that was long under way covers less than one before it
	if p.records.Deliver(string(uid), upTo, p.send) {
		delete(p.undelivered, uid)
	} else {
		p.undelivered[uid] = upTo
	}
}

func (p *PLEG) send(e rules.Event) bool {
	select {
	case p.events <- Event{PodUID: types.UID(e.Pod), Kind: e.Kind, ContainerID: e.Container}:
		p.full = false
		if e.Kind == rules.ContainerDied {
			p.tellEnd(e)
		}
		return true
	default:
	}
	p.metrics.discarded.Inc()
	if !p.full {
		p.log.Warn("nobody takes the events of pods: they wait", slog.Int(telemetry.KeyCount, cap(p.events)))
	}
	p.full = true
	return false
}

// tellEnd writes a container's exit code to the log, where its status is known.
func (p *PLEG) tellEnd(e rules.Event) {
	status := p.cache.last(types.UID(e.Pod))
	if status == nil {
		return
	}
	for i := range status.Containers {
		if c := &status.Containers[i]; c.ID == e.Container {
			p.log.Debug("container ended", slog.String(telemetry.KeyKey, status.Namespace+"/"+status.Name),
				slog.String("container", c.Name), slog.Int("exit_code", int(c.ExitCode)), slog.String(telemetry.KeyReason, c.Reason))
		}
	}
}

// state is what events are made from: created is not running yet, and whatever no CRI defines is
// not known.
func state(s container.State) rules.State {
	switch s {
	case container.Running:
		return rules.Running
	case container.Exited:
		return rules.Exited
	default:
		return rules.Unknown
	}
}

func sandboxState(ready bool) rules.State {
	if ready {
		return rules.Running
	}
	return rules.Exited
}

func appendListed(out []rules.Observed, p *container.Pod) []rules.Observed {
	out = slices.Grow(out, len(p.Containers)+len(p.Sandboxes))
	for i := range p.Containers {
		out = append(out, rules.Observed{ID: p.Containers[i].ID, State: state(p.Containers[i].State)})
	}
	for _, s := range p.Sandboxes {
		out = append(out, rules.Observed{ID: s.ID, State: sandboxState(s.Ready)})
	}
	return out
}

func observed(s *container.PodStatus) []rules.Observed {
	out := make([]rules.Observed, 0, len(s.Containers)+len(s.Sandboxes))
	for i := range s.Containers {
		out = append(out, rules.Observed{ID: s.Containers[i].ID, State: state(s.Containers[i].State)})
	}
	for i := range s.Sandboxes {
		out = append(out, rules.Observed{ID: s.Sandboxes[i].ID, State: sandboxState(s.Sandboxes[i].Ready)})
	}
	return out
}
