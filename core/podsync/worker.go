package podsync

import "time"

// State is where a worker is in its pod's life; it only grows.
type State uint8

// The states.
const (
	// Syncing: the pod is brought towards running.
	Syncing State = iota
	// Terminating: what runs is ended, and nothing is started any more.
	Terminating
	// Terminated: nothing runs; what the pod had besides is freed.
	Terminated
	// Finished: nothing is left to do. The worker only refuses updates.
	Finished
)

func (s State) String() string {
	return [...]string{"sync", "terminating", "terminated", "finished"}[min(s, Finished)]
}

// Update is news of a pod. T is what the caller needs to act on it.
type Update[T any] struct {
	Kind Kind
	Body T
	// Facts are what the rules look at in the pod; zero for an orphan.
	Facts Facts
	// Orphan says that only the runtime knows the pod. It can only be killed.
	Orphan bool
	// Kill, when set, says how the pod is to end. It counts only once it is ending.
	Kill *Kill
	// Begin is when the news came, for latencies; zero is not measured.
	Begin time.Time
}

// Kill says how a pod is to end.
type Kill struct {
	// Grace in seconds, if shorter than what holds already; nil leaves it.
	Grace *int64
	// Evict says that the node wants to be rid of the pod.
	Evict bool
}

// Refusal says why an update was not taken.
type Refusal uint8

// The refusals; None is none.
const (
	None Refusal = iota
	// OrphanNotKilled: only the runtime knows the pod, and the update is no kill.
	OrphanNotKilled
	// RestartFlagged: the pod is ending; its worker is purged once it has finished, to start over.
	RestartFlagged
	// AlreadyTerminated: the runtime's view is older than the worker's.
	AlreadyTerminated
	// AlreadyFinished: the UID has had its life.
	AlreadyFinished
)

func (r Refusal) String() string {
	return [...]string{"none", "orphan_not_killed", "restart_flagged", "already_terminated", "already_finished"}[min(r, AlreadyFinished)]
}

// Work is one step that a worker takes.
type Work[T any] struct {
	// State is which step: never Finished.
	State  State
	Update Update[T]
	// Grace in seconds, at least 1, when State is Terminating.
	Grace int64
}

// Worker is the life of one pod UID: which update waits, what is done next, and
// what is refused. At most one step is under way: Next, then Complete.
type Worker[T any] struct {
	pending, active *Update[T]
	busy            bool // a step is under way
	step            State

	state   State
	grace   int64 // 0: not decided
	started bool

	deleted, evicted, restart, orphaned bool
}

// NewWorker makes the worker of a UID that is heard of for the first time, with
// its first update. quiet says that the runtime is known to run nothing of the
// pod: together with a terminal phase that means it terminated in an earlier life
// of the agent, and only its freeing is left. An orphan that is not killed makes no worker.
func NewWorker[T any](first Update[T], quiet bool) (*Worker[T], Refusal) {
	w := &Worker[T]{}
	if first.Orphan && first.Kind != KindKill {
		return nil, OrphanNotKilled
	}
	if !first.Orphan && first.Facts.Ended && quiet {
		w.state, w.deleted = Terminated, first.Facts.Deleting
		w.grace = 1
		w.pending = &first
		return w, None
	}
	w.take(first)
	return w, None
}

// Offer gives the worker an update, which replaces one that waits. Entering
// termination, or a shorter grace, cancels the step under way.
func (w *Worker[T]) Offer(u Update[T]) (cancel bool, refused Refusal) {
	switch {
	case u.Orphan && u.Kind != KindKill:
		return false, OrphanNotKilled
	case w.state >= Terminating && u.Kind == KindCreate:
		w.restart = true
		return false, RestartFlagged
	case w.state == Finished:
		return false, AlreadyFinished
	case w.state == Terminated && u.Orphan:
		return false, AlreadyTerminated
	}
	return w.take(u) && w.busy, None
}

// take makes u the waiting update; more says that it begins the end or hastens it.
func (w *Worker[T]) take(u Update[T]) (more bool) {
	orphan := u.Orphan
	if orphan {
		// A pod whose configuration is known is ended by that, not by the runtime's sketch of it.
		w.orphaned = true
		for _, known := range []*Update[T]{w.active, w.pending} {
			if known != nil && !known.Orphan {
				u.Body, u.Facts, u.Orphan = known.Body, known.Facts, false
			}
		}
	}
	if w.state == Syncing {
		switch {
		case orphan, u.Facts.Deleting:
			w.deleted, more = true, true
		case u.Facts.Ended:
			more = true
		case u.Kind == KindKill:
			w.evicted, more = u.Kill != nil && u.Kill.Evict, true
		}
		if more {
			w.state = Terminating
		}
	} else if u.Facts.Deleting {
		w.deleted = true
	}
	if w.state == Terminating {
		var shorter bool
		w.grace, shorter = Grace(w.grace, u.Facts, u.Kill)
		more = more || shorter
	}
	if w.pending != nil && !w.pending.Begin.IsZero() && (u.Begin.IsZero() || w.pending.Begin.Before(u.Begin)) {
		u.Begin = w.pending.Begin
	}
	w.pending = &u
	return more
}

// Next begins the step for the waiting update; ok is false when none waits, or a step is under way.
func (w *Worker[T]) Next() (work Work[T], ok bool) {
	if w.pending == nil || w.busy || w.state == Finished {
		return work, false
	}
	w.active, w.pending = w.pending, nil
	w.busy, w.started, w.step = true, true, w.state
	return Work[T]{State: w.state, Update: *w.active, Grace: w.grace}, true
}

// Result is how a step went.
type Result uint8

// The results.
const (
	// Failed: it is to be tried again.
	Failed Result = iota
	// Succeeded: it is done; the state's work is over when it was Terminating or Terminated.
	Succeeded
	// Ended: the pod has run its course. Only a step of Syncing says so.
	Ended
)

// Complete ends the step under way. moved says that the state changed and the
// next step waits already; a worker that has Finished takes none. gone says that
// the worker itself is to be forgotten: an orphan is nothing anybody wanted.
func (w *Worker[T]) Complete(r Result) (moved, gone bool) {
	if !w.busy {
		return false, false
	}
	w.busy = false
	switch {
	case r == Failed:
		return false, false
	case w.step == Terminated:
		w.state, w.pending = Finished, nil
		return true, false
	case w.step == Terminating:
		if w.active.Orphan {
			w.state, w.pending = Finished, nil
			return true, true
		}
		w.state = Terminated
	case r == Ended:
		w.end()
	default:
		return false, false
	}
	w.again()
	return true, false
}

// end begins termination by the configuration at hand, unless it has begun.
func (w *Worker[T]) end() {
	if w.state != Syncing {
		return
	}
	w.state = Terminating
	w.grace, _ = Grace(w.grace, w.active.Facts, nil)
}

// again makes the last update wait once more, unless a newer one does.
func (w *Worker[T]) again() {
	if w.pending != nil || w.active == nil {
		return
	}
	u := *w.active
	u.Kind, u.Kill, u.Begin = KindSync, nil, time.Time{}
	w.pending = &u
}

// Again makes the last update wait once more when nothing waits; ok is false when
// there is none, or nothing is left to do. It is how work that falls due for a
// pod whose configuration is gone is not lost.
func (w *Worker[T]) Again() (ok bool) {
	if w.state == Finished {
		return false
	}
	w.again()
	return w.pending != nil
}

// Purge is called for a worker that should go: its pod is wanted no longer (unwanted), or a restart
// was flagged. gone says that it may be forgotten; else, when it is unwanted, it begins to end and
// cancel says that the step under way is to be cancelled for it.
func (w *Worker[T]) Purge(unwanted bool) (gone, cancel bool) {
	if w.state == Finished {
		return true, false
	}
	if !unwanted {
		return false, false
	}
	w.deleted = true
	if !w.started && !w.orphaned {
		w.state, w.pending = Finished, nil // nothing was ever started for it
		return true, false
	}
	if w.state == Syncing {
		w.end()
		cancel = w.busy
	}
	w.again()
	return false, cancel
}

// State is where the worker is.
func (w *Worker[T]) State() State { return w.state }

// Waiting reports whether an update waits.
func (w *Worker[T]) Waiting() bool { return w.pending != nil }

// Busy reports whether a step is under way.
func (w *Worker[T]) Busy() bool { return w.busy }

// Restart reports whether a new pod of the same UID asked to start while this one was ending.
func (w *Worker[T]) Restart() bool { return w.restart }

// Removable reports whether what the pod left on the node may go: nothing runs,
// and the pod was deleted or evicted.
func (w *Worker[T]) Removable() bool { return w.evicted || w.deleted && w.state >= Terminated }

// Latest is the configuration the worker goes by: what waits, or what was last acted on.
func (w *Worker[T]) Latest() (u Update[T], ok bool) {
	switch {
	case w.pending != nil:
		return *w.pending, true
	case w.active != nil:
		return *w.active, true
	default:
		return u, false
	}
}
