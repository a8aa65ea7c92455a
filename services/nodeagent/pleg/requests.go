package pleg

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// requests are what others want looked at. It is safe for concurrent use.
type requests struct {
	limit int
	// ping holds something while a relist may be waiting.
	ping chan struct{}

	mu sync.Mutex
	// relists are the pods to look at now, each once, in the order they were first
	// asked for; at is what each look is to be newer than.
	relists []types.UID
	at      map[types.UID]time.Time
	// inspect is the reinspection set.
	inspect map[types.UID]struct{}
}

func newRequests(limit int) *requests {
	return &requests{
		limit: limit, ping: make(chan struct{}, 1),
		at: map[types.UID]time.Time{}, inspect: map[types.UID]struct{}{},
	}
}

// relist queues a pod, and is false when there is no room.
func (r *requests) relist(uid types.UID, at time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.at[uid]; !ok {
		if len(r.relists) >= r.limit {
			return false
		}
		r.relists = append(r.relists, uid)
		r.at[uid] = at
	}
	if at.After(r.at[uid]) {
		r.at[uid] = at
	}
	r.wake()
	return true
}

// next takes the pod that has waited longest, and pings for those behind it.
func (r *requests) next() (uid types.UID, at time.Time, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.relists) == 0 {
		return "", time.Time{}, false
	}
	uid = r.relists[0]
	at = r.at[uid]
	delete(r.at, uid)
	if r.relists = r.relists[1:]; len(r.relists) > 0 {
		r.wake()
	}
	return uid, at, true
}

func (r *requests) wake() {
	select {
	case r.ping <- struct{}{}:
	default:
	}
}

func (r *requests) reinspect(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inspect[uid] = struct{}{}
}

// inspections are the pods in the reinspection set, sorted.
func (r *requests) inspections() []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.inspect) == 0 {
		return nil
	}
	out := make([]types.UID, 0, len(r.inspect))
	for uid := range r.inspect {
		out = append(out, uid)
	}
	slices.Sort(out)
	return out
}

// inspected takes a pod from the reinspection set, and reports whether it was there.
func (r *requests) inspected(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.inspect[uid]
	delete(r.inspect, uid)
	return ok
}
