package pleg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/pleg"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// errNoStatus is a runtime's answer that is none.
var errNoStatus = errors.New("pleg: the runtime answered without a status")

// pod is what the loop keeps of a pod besides its records.
type pod struct {
	namespace, name string
	// open is the inspection that is under way; queued says that one waits for its turn.
	open   *inspection
	queued bool
	// again says that something was learnt or wanted since the open inspection was asked.
	again bool
	// held says that the pod changed and the cache does not show it yet.
	held bool
	// suspect says that the last inspection took too long.
	suspect bool
}

// inspection is one call for the status of a pod.
type inspection struct {
	uid   types.UID
	stamp rules.Stamp
	at    time.Time
	// sync says that the pod was in the reinspection set, suspect that it is of the slow.
	sync, suspect bool
	// void says that the pod was found gone since: the answer may show what is not there any more.
	void bool
	// abandoned says that nobody waits for the answer any more: the runtime ignores the time limit.
	abandoned bool
}

type answer struct {
	inspection *inspection
	status     *container.PodStatus
	err        error
	// late says that the time limit was over.
	late bool
}

// inspector says which pod is inspected next. Pods that took too long last time are asked in a
// line of their own, and have at most half of the turns: however many hang, the
// others go on.
type inspector struct {
	line, slow    []types.UID
	busy, suspect int
	open          map[*inspection]struct{}
}

// want makes the pod be asked about, once, whatever is known of it already. With
// hold, readers of the cache wait for the answer.
func (p *PLEG) want(ctx context.Context, uid types.UID, hold bool) {
	s := p.pod(uid)
	abandoned := s.open != nil && s.open.abandoned
	if hold && !s.held && !abandoned {
		s.held = true
		p.cache.hold(uid)
	}
	switch {
	case s.open != nil:
		s.again = true
	case s.queued:
	case s.suspect:
		s.queued = true
		p.inspector.slow = append(p.inspector.slow, uid)
	default:
		s.queued = true
		p.inspector.line = append(p.inspector.line, uid)
	}
	p.ask(ctx)
}

func (p *PLEG) pod(uid types.UID) *pod {
	s := p.pods[uid]
	if s == nil {
		s = &pod{}
		p.pods[uid] = s
	}
	return s
}

// ask puts as many inspections as may be under way.
func (p *PLEG) ask(ctx context.Context) {
	a := &p.inspector
	for a.busy < p.cfg.Parallel {
		line, suspect := &a.line, false
		if len(*line) == 0 {
			if len(a.slow) == 0 || a.suspect >= max(p.cfg.Parallel/2, 1) {
				return
			}
			line, suspect = &a.slow, true
			a.suspect++
		}
		uid := (*line)[0]
		*line = (*line)[1:]
		a.busy++
		s := p.pods[uid]
		s.queued, s.again = false, false
		s.open = &inspection{uid: uid, stamp: p.records.Ask(), at: time.Now(), sync: p.requests.inspected(uid), suspect: suspect}
		a.open[s.open] = struct{}{}
		p.put(ctx, s.open, s.namespace, s.name)
	}
}

// put asks the runtime, on the side.
func (p *PLEG) put(ctx context.Context, q *inspection, namespace, name string) {
	p.running.Go(func() {
		limited, cancel := context.WithTimeout(ctx, p.cfg.StatusLimit)
		defer cancel()
		status, err := p.runtime.PodStatus(limited, q.uid, namespace, name)
		if err == nil && status == nil {
			err = errNoStatus
		}
		p.metrics.podRelist.Observe(time.Since(q.at).Seconds())
		select {
		case p.answers <- answer{inspection: q, status: status, err: err, late: limited.Err() != nil}:
		case <-ctx.Done():
		}
	})
}

// take takes in the answer to a inspection.
func (p *PLEG) take(ctx context.Context, a answer) {
	q := a.inspection
	s := p.pods[q.uid]
	s.open = nil
	delete(p.inspector.open, q)
	if q.abandoned {
		p.release(q.uid, s) // it is in the reinspection set since, or gone
		return
	}
	p.free(q)
	if a.err != nil {
		p.failed(ctx, q, a.err, a.late)
		p.ask(ctx)
		return
	}
	s.suspect = false
	if q.void || !p.cache.takes(q.uid, q.at, q.stamp) {
		// Something newer came while it was under way: what is in this answer and not in that is seen by
		// asking again.
		if q.sync {
			p.requests.reinspect(q.uid)
		}
		p.want(ctx, q.uid, s.held)
		return
	}
	if a.status.Name != "" {
		s.namespace, s.name = a.status.Namespace, a.status.Name
	}
	p.records.Observe(string(q.uid), observed(a.status), q.stamp)
	upTo := q.stamp
	if p.records.Known(string(q.uid)) {
		p.store(q.uid, a.status, q.at, q.stamp)
	} else {
		p.census.set(q.uid, heads{})
		p.cache.absent(q.uid, q.at)
		upTo = p.records.Ask() // nothing is left to ask for
	}
	if q.sync {
		p.records.Sync(string(q.uid))
	}
	p.deliver(q.uid, upTo)
	if s.again {
		p.want(ctx, q.uid, s.held)
	} else {
		p.release(q.uid, s)
	}
	p.ask(ctx)
}

// failed notes that there is no answer: readers get the error, and the pod is asked about with the
// next list.
func (p *PLEG) failed(ctx context.Context, q *inspection, err error, slow bool) {
	s := p.pods[q.uid]
	s.suspect, s.again = slow, false
	p.requests.reinspect(q.uid)
	p.cache.set(q.uid, nil, fmt.Errorf("pleg: status of pod %s/%s: %w", s.namespace, s.name, err), q.at, q.stamp)
	p.release(q.uid, s)
	p.log.LogAttrs(ctx, slog.LevelWarn, "no status of a pod", slog.String(telemetry.KeyKey, s.namespace+"/"+s.name),
		slog.String(telemetry.KeyUID, string(q.uid)), slog.Any(telemetry.KeyError, err))
}

// abandon gives up inspections whose calls do not end with their time, so that their turns are not
// lost for ever.
func (p *PLEG) abandon(ctx context.Context, now time.Time) {
	for q := range p.inspector.open {
		if !q.abandoned && now.Sub(q.at) > p.cfg.StatusLimit+p.cfg.Period {
			q.abandoned = true
			p.free(q)
			p.failed(ctx, q, context.DeadlineExceeded, true)
		}
	}
	p.ask(ctx)
}

func (p *PLEG) free(q *inspection) {
	p.inspector.busy--
	if q.suspect {
		p.inspector.suspect--
	}
}

// release lets the cache speak for the pod again, and forgets it when it is gone.
func (p *PLEG) release(uid types.UID, s *pod) {
	if s.held {
		s.held = false
		p.cache.release(uid)
	}
	p.forget(uid)
}

// forget drops what the loop keeps of a pod that is gone and that nobody asks about.
func (p *PLEG) forget(uid types.UID) {
	if s := p.pods[uid]; s != nil && s.open == nil && !s.queued && !p.records.Known(string(uid)) {
		delete(p.pods, uid)
	}
}

// store puts a status into the cache, which takes it. A pod without addresses and ready
// sandboxes keeps those it had: they are asked for after the network is torn down.
func (p *PLEG) store(uid types.UID, status *container.PodStatus, at time.Time, stamp rules.Stamp) {
	if len(status.IPs) == 0 && !ready(status) {
		if last := p.cache.last(uid); last != nil && len(last.IPs) > 0 {
			kept := *status
			kept.IPs = last.IPs
			status = &kept
		}
	}
	p.cache.set(uid, status, nil, at, stamp)
	p.census.set(uid, headsOfStatus(status))
}

func ready(status *container.PodStatus) bool {
	for i := range status.Sandboxes {
		if status.Sandboxes[i].Ready {
			return true
		}
	}
	return false
}
