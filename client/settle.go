package client

import (
	"maps"
	"slices"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// lateBatch is a batch that was answered in part, or settlements sent again: they
// hold nothing else up.
type lateBatch struct {
	id          uint64
	settlements []*queuev1.Settlement // nil where answered
}

// retry is a settlement whose part of the store could not be reached. It is sent
// again until its lease must have ended.
type retry struct {
	s     *queuev1.Settlement
	sent  bool // it is under way
	next  time.Time
	pause time.Duration
	until time.Time
}

// Bounds of the pause before a settlement is sent again.
const (
	firstRetry = 100 * time.Millisecond
	mostRetry  = time.Second
)

// unanswered is how many settlements wait to be sent or answered. Mu must be held.
func (w *Worker) unanswered() int {
	return len(w.outbox) + len(w.unsettled) + len(w.late) + len(w.retries)
}

// unsure are the settlements that wait to be sent or answered. Mu must be held.
func (w *Worker) unsure() []*queuev1.Settlement {
	all := slices.Clone(w.outbox)
	for _, batch := range w.unsettled {
		all = append(all, batch.GetSettlements()...)
	}
	for _, r := range w.retries {
		if !r.sent {
			all = append(all, r.s)
		}
	}
	for _, batch := range w.late {
		all = append(all, batch.settlements...)
	}
	return slices.DeleteFunc(all, func(s *queuev1.Settlement) bool { return s == nil })
}

// settled takes the answer to a batch, or a part of it.
func (w *Worker) settled(l *link, s *queuev1.Settled) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.left {
		return
	}
	var all []*queuev1.Settlement
	held := true
	if at := slices.IndexFunc(w.unsettled, func(b *queuev1.SettleBatch) bool { return b.GetRequestId() == s.GetRequestId() }); at >= 0 {
		all, held = w.unsettled[at].GetSettlements(), w.unsettled[at].GetHoldCredit()
		w.unsettled = slices.Delete(w.unsettled, at, at+1)
	} else if at = slices.IndexFunc(w.late, func(b *lateBatch) bool { return b.id == s.GetRequestId() }); at >= 0 {
		all = w.late[at].settlements
		w.late = slices.Delete(w.late, at, at+1)
	} else {
		return
	}
	select {
	case l.settled <- struct{}{}:
	default:
	}
	left := &lateBatch{id: s.GetRequestId(), settlements: make([]*queuev1.Settlement, 0)}
	if s.GetMore() {
		left.settlements = slices.Clone(all)
		w.late = append(w.late, left)
	}
	status := statusOf(s, len(all))
	for i, st := range all {
		if st == nil {
			continue // answered before
		}
		switch code := status(i, st); {
		case s.GetMore() && code == queuev1.SettleStatus_SETTLE_STATUS_UNSPECIFIED:
			continue // under way
		case code == queuev1.SettleStatus_SETTLE_STATUS_UNAVAILABLE:
			w.again(st)
		default:
			if gone(code) {
				w.tellLost(st.GetKey())
				if !held && l.credit > 0 {
					l.credit-- // the server may not have given it back
				}
			}
			w.answered(st)
		}
		if s.GetMore() {
			left.settlements[i] = nil
		}
	}
	w.checkIdle()
	w.notify()
}

// answered lets go of a settlement that was answered. Mu must be held.
func (w *Worker) answered(s *queuev1.Settlement) {
	delete(w.retries, leaseID{s.GetKey(), s.GetToken()})
	if len(w.free) < maxFree {
		w.free = append(w.free, s)
	}
}

// statusOf finds the status of each settlement of a batch in its answer.
func statusOf(s *queuev1.Settled, n int) func(int, *queuev1.Settlement) queuev1.SettleStatus {
	if len(s.GetStatuses()) == n { // compact
		return func(i int, _ *queuev1.Settlement) queuev1.SettleStatus { return s.GetStatuses()[i] }
	}
	told := make(map[leaseID]queuev1.SettleStatus, len(s.GetResults()))
	for _, r := range s.GetResults() {
		told[leaseID{r.GetKey(), r.GetToken()}] = r.GetStatus()
	}
	return func(_ int, st *queuev1.Settlement) queuev1.SettleStatus {
		return told[leaseID{st.GetKey(), st.GetToken()}]
	}
}

// again has a settlement sent once more, later. Until it is answered extensions
// name their leases, so that none keeps its lease alive. Mu must be held.
func (w *Worker) again(s *queuev1.Settlement) {
	now := time.Now()
	id := leaseID{s.GetKey(), s.GetToken()}
	r := w.retries[id]
	if r == nil {
		r = &retry{s: s, pause: firstRetry, until: now.Add(w.lease)}
		w.retries[id] = r
	}
	r.sent, r.next = false, now.Add(r.pause)
	r.pause = min(2*r.pause, mostRetry)
	w.abandon()
	w.watch(r.next)
}

// nextRetry is when a settlement is to be sent again, zero for none. Mu must be held.
func (w *Worker) nextRetry() (next time.Time) {
	for _, r := range w.retries {
		if !r.sent && (next.IsZero() || r.next.Before(next)) {
			next = r.next
		}
	}
	return next
}

// retryBatch is what is to be sent again now, or nil. What it settled gave its
// credit back when it was sent first. Mu must be held.
func (w *Worker) retryBatch(now time.Time) *queuev1.SettleBatch {
	var due []*queuev1.Settlement
	for _, r := range slices.Collect(maps.Values(w.retries)) {
		switch {
		case r.sent || r.next.After(now) || len(due) == maxBatch:
		case !r.until.After(now): // the lease has ended, whatever became of it
			w.tellLost(r.s.GetKey())
			w.answered(r.s)
		default:
			r.sent = true
			due = append(due, r.s)
		}
	}
	if at := w.nextRetry(); !at.IsZero() {
		w.watch(at)
	}
	if len(due) == 0 {
		w.checkIdle()
		return nil
	}
	w.lastID++
	w.late = append(w.late, &lateBatch{w.lastID, due})
	return &queuev1.SettleBatch{RequestId: w.lastID, Settlements: slices.Clone(due), HoldCredit: true}
}

// unstick has what was under way on a stream that broke sent on the next one, in
// new batches. Mu must be held.
func (w *Worker) unstick() {
	for _, batch := range w.late {
		for _, s := range batch.settlements {
			if s != nil {
				w.again(s)
				w.retries[leaseID{s.GetKey(), s.GetToken()}].next = time.Now()
			}
		}
	}
	w.late = nil
}
