package pleg

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/pleg"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// told takes in an event of the runtime's stream. What it says of its container
// is believed unless the records know better; the status that it brings is used
// where it agrees with the records, and asked for otherwise.
func (p *PLEG) told(ctx context.Context, n news) {
	p.trust(ctx)
	e := n.event
	if !e.At.IsZero() {
		p.metrics.latency.Observe(max(time.Since(e.At), 0).Seconds())
	}
	uid, ok := p.podOf(e)
	if !ok {
		if e.Kind != container.EventDeleted { // nothing was known of it, and nothing is left
			p.listWithin(p.cfg.Period)
		}
		return
	}
	changed, believed := false, false
	if next, ok := stateAfter(e.Kind); ok && e.ContainerID != "" {
		changed, believed = p.records.Notice(string(uid), e.ContainerID, next)
	}
	switch {
	case changed && !p.records.Known(string(uid)):
		p.gone(uid, n.at)
	case believed && p.adopt(uid, e, n.at):
	case changed || !believed:
		p.want(ctx, uid, changed)
	}
}

// podOf is the pod of an event. Events about sandboxes that are gone do not say.
func (p *PLEG) podOf(e container.Event) (types.UID, bool) {
	if e.PodUID != "" {
		return e.PodUID, true
	}
	if e.Status != nil && e.Status.UID != "" {
		return e.Status.UID, true
	}
	for _, id := range []string{e.ContainerID, e.SandboxID} {
		if name, ok := p.records.PodOf(id); ok {
			return types.UID(name), true
		}
	}
	return "", false
}

// stateAfter is what a container is after an event; false for kinds that say nothing.
func stateAfter(k container.EventKind) (rules.State, bool) {
	switch k {
	case container.EventCreated:
		return rules.Unknown, true
	case container.EventStarted:
		return rules.Running, true
	case container.EventStopped:
		return rules.Exited, true
	case container.EventDeleted:
		return rules.NonExistent, true
	default:
		return 0, false
	}
}

// adopt uses the status of an event, if it has one that is newer than the cache's and does not
// contradict the records.
func (p *PLEG) adopt(uid types.UID, e container.Event, came time.Time) bool {
	if e.Status == nil || e.At.IsZero() {
		return false
	}
	// The runtime's time is a wall clock's, which may be set back: only the age is taken from it.
	at := came.Add(-max(came.Round(0).Sub(e.At), 0))
	stamp := p.records.Ask()
	if !p.cache.takes(uid, at, stamp) {
		return false
	}
	all := observed(e.Status)
	for i := range all {
		// A sandbox that was only created is not ready, and did not die.
		if e.Kind == container.EventCreated && all[i].ID == e.ContainerID && all[i].State == rules.Exited {
			all[i].State = rules.Unknown
		}
	}
	if len(all) == 0 || !p.records.Merge(string(uid), all) {
		return false
	}
	if s := p.pod(uid); e.Status.Name != "" {
		s.namespace, s.name = e.Status.Namespace, e.Status.Name
	}
	p.store(uid, e.Status, at, stamp)
	p.deliver(uid, p.records.Ask())
	return true
}

// listWithin makes the next list come no later than after d.
func (p *PLEG) listWithin(d time.Duration) {
	if soon := time.Now().Add(d); p.nextList.After(soon) {
		p.nextList = soon
	}
}
