package pleg

import "slices"

// Observe takes in a complete answer about a pod, of all its containers and
// sandboxes (none: the pod is gone), to a inspection with that stamp. It reports
// whether anything of the pod changed, ContainerChanged included.
//
// What was learnt after the inspection was asked stands against the answer, except
// where the answer is further on in a container's life.
func (r *Records) Observe(pod string, all []Observed, asked Stamp) bool {
	p := r.pods[pod]
	switch {
	case p == nil && len(all) == 0:
		return false
	case p != nil && p.same(all):
		return false
	}
	p = r.record(pod)
	defer r.drop(pod, p)
	now := make(map[string]State, len(all))
	ids := make([]string, 0, len(all)+len(p.seen))
	for _, o := range all {
		if at, ok := r.removedAt(o.ID); ok && at >= asked && o.State != NonExistent {
			continue // the answer did not know yet
		}
		now[o.ID] = o.State
		ids = append(ids, o.ID)
	}
	for id := range p.seen {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	learnt := r.Ask() // later than every inspection under way: no answer to one takes it back
	any := false
	for _, id := range slices.Compact(ids) {
		was, next := p.seen[id], now[id]
		if was.state == next || was.learnt > asked && !was.state.forward(next) {
			continue
		}
		r.change(pod, p, id, next, asked, learnt)
		any = true
	}
	return any
}

// same is the common case of a list: nothing changed, and nothing is allocated.
func (p *record) same(all []Observed) bool {
	if len(all) != len(p.seen) {
		return false
	}
	for _, o := range all {
		if was, ok := p.seen[o.ID]; !ok || was.state != o.State {
			return false
		}
	}
	return true
}

// Notice takes in news of one container of a pod: an event of the runtime.
// Runtimes send them late and out of order, so that news never lead a container's
// life backwards, and bring no removed container back. It reports whether the
// container's state changed, and whether the news are believed: those that are
// not are old, or the records are wrong, and only asking tells which.
func (r *Records) Notice(pod, container string, next State) (changed, believed bool) {
	if _, ok := r.removedAt(container); ok {
		return false, next == NonExistent
	}
	was, known := r.stateOf(pod, container)
	switch {
	case was == next && (known || next == NonExistent):
		return false, true
	case next != NonExistent && !was.forward(next):
		return false, false
	}
	p := r.record(pod)
	at := r.Ask()
	r.change(pod, p, container, next, at, at)
	r.drop(pod, p)
	return true, true
}

func (r *Records) stateOf(pod, container string) (State, bool) {
	p := r.pods[pod]
	if p == nil {
		return NonExistent, false
	}
	s, ok := p.seen[container]
	return s.state, ok
}

// Merge takes in an answer that came with an event: nobody asked for it, so that
// nobody knows how old it is. When it contradicts what is known, by a container
// that is missing from it, that was removed, or that is not as far in its life, it
// is older than the records and changes nothing; false then. Otherwise it is taken
// in, and everything noted so far may be delivered with it.
func (r *Records) Merge(pod string, all []Observed) bool {
	p := r.pods[pod]
	if p == nil {
		p = &record{}
	}
	matched := 0
	for _, o := range all {
		if _, ok := r.removedAt(o.ID); ok {
			return false
		}
		was, ok := p.seen[o.ID]
		if ok {
			matched++
		}
		if was.state != o.State && !was.state.forward(o.State) {
			return false
		}
	}
	if matched < len(p.seen) {
		return false
	}
	if len(all) > 0 {
		r.Observe(pod, all, r.Ask())
	}
	return true
}
