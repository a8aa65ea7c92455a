package pleg

// Sync notes a PodSync, unless the pod has something else to tell. It holds for
// pods that are not known, too.
func (r *Records) Sync(pod string) {
	p := r.record(pod)
	if len(p.pending) == 0 {
		p.note(Event{Pod: pod, Kind: PodSync}, 0)
	}
}

// Deliver hands over what is to be reported of a pod and was learnt up to a stamp:
// that of the inspection whose answer is the pod's status now. Each event is gone
// once send has taken it; the first refusal ends it, and what is left stays in its
// order. It reports whether everything due was taken.
func (r *Records) Deliver(pod string, upTo Stamp, send func(Event) bool) bool {
	p := r.pods[pod]
	if p == nil {
		return true
	}
	defer r.drop(pod, p)
	for len(p.pending) > 0 && p.pending[0].asked <= upTo {
		if !send(p.pending[0].Event) {
			return false
		}
		p.pending = p.pending[1:]
	}
	return true
}

// Pending reports whether something of the pod is not delivered yet.
func (r *Records) Pending(pod string) bool {
	p := r.pods[pod]
	return p != nil && len(p.pending) > 0
}
