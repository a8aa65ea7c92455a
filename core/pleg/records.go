package pleg

import (
	"maps"
	"slices"
)

// Stamp orders inspections and news: of two, the greater came later. The zero value
// is before everything.
type Stamp uint64

// Observed is one container or sandbox in an answer of the runtime.
type Observed struct {
	ID    string
	State State
}

// Records is what is known of all pods, and what of it was not delivered yet. An
// event leaves it when somebody took it and not before, so that a pod whose status
// cannot be had, or whose events nobody has room for, is reported later and in
// full: a container that came and went meanwhile included.
//
// It is not safe for concurrent use.
type Records struct {
	last Stamp
	pods map[string]*record
	// out are containers that were removed, and when; past those of the generation
	// before, see Age.
	out, past map[string]Stamp
}

type record struct {
	seen map[string]observation
	// pending is in the order it happened. A container is in it at most once with
	// each kind: the newest.
	pending []pending
}

type observation struct {
	state  State
	learnt Stamp
}

type pending struct {
	Event
	asked Stamp
}

// NewRecords returns records of no pods.
func NewRecords() *Records {
	return &Records{pods: map[string]*record{}, out: map[string]Stamp{}}
}

// Ask returns the stamp of a inspection that is put to the runtime now.
func (r *Records) Ask() Stamp {
	r.last++
	return r.last
}

// Known reports whether anything of the pod was there when it was last seen.
func (r *Records) Known(pod string) bool {
	p := r.pods[pod]
	return p != nil && len(p.seen) > 0
}

// Pods are all pods that are known or of which something is not delivered yet, in no order.
func (r *Records) Pods() []string { return slices.Collect(maps.Keys(r.pods)) }

// PodOf is the pod in which a container or sandbox was last seen; false when it is not known.
func (r *Records) PodOf(container string) (string, bool) {
	for name, p := range r.pods {
		if _, ok := p.seen[container]; ok {
			return name, true
		}
	}
	return "", false
}

// Age forgets removed containers that were removed before the last call. News of
// a removed container that come later than that, or answers to inspections older
// than that, would bring it back until the next list: call it seldom enough.
func (r *Records) Age() {
	r.past, r.out = r.out, map[string]Stamp{}
}

func (r *Records) removedAt(container string) (Stamp, bool) {
	if at, ok := r.out[container]; ok {
		return at, true
	}
	at, ok := r.past[container]
	return at, ok
}

// change moves a container to another state, as it was learnt at one stamp, and
// notes what is to be reported of it, once there is a status that was asked for at the
// other.
func (r *Records) change(pod string, p *record, container string, next State, asked, learnt Stamp) {
	for _, kind := range Diff(p.seen[container].state, next) {
		if kind != ContainerChanged {
			p.note(Event{Pod: pod, Kind: kind, Container: container}, asked)
		}
	}
	if next == NonExistent {
		delete(p.seen, container)
		r.out[container] = learnt
		return
	}
	p.seen[container] = observation{state: next, learnt: learnt}
}

func (p *record) note(e Event, asked Stamp) {
	p.pending = slices.DeleteFunc(p.pending, func(old pending) bool { return old.Event == e })
	p.pending = append(p.pending, pending{Event: e, asked: asked})
}

func (r *Records) record(pod string) *record {
	p := r.pods[pod]
	if p == nil {
		p = &record{seen: map[string]observation{}}
		r.pods[pod] = p
	}
	return p
}

// drop forgets a pod of which nothing is left to know and to tell.
func (r *Records) drop(pod string, p *record) {
	if len(p.seen) == 0 && len(p.pending) == 0 {
		delete(r.pods, pod)
	}
}
