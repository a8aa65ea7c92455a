package podsync_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/podsync"
)

type (
	update = podsync.Update[string]
	worker = podsync.Worker[string]
)

// seen is what is visible of a worker from outside.
type seen struct {
	State                             podsync.State
	Busy, Waiting, Restart, Removable bool
	Grace                             int64
}

func look(w *worker, grace int64) seen {
	return seen{w.State(), w.Busy(), w.Waiting(), w.Restart(), w.Removable(), grace}
}

// live takes steps until nothing waits, each of which succeeds; it returns the last grace.
func live(w *worker) (grace int64) {
	for {
		work, ok := w.Next()
		if !ok {
			return grace
		}
		if work.State == podsync.Terminating {
			grace = work.Grace
		}
		w.Complete(podsync.Succeeded)
	}
}

// The rows of upstream's TestUpdatePod.
func TestUpdatePod(t *testing.T) {
	t.Parallel()
	thirty := podsync.Facts{SpecGrace: new(int64(30))}
	deleting := podsync.Facts{SpecGrace: new(int64(30)), Deleting: true, DeletionGrace: new(int64(15))}
	ended := podsync.Facts{SpecGrace: new(int64(30)), Ended: true}
	create := update{Kind: podsync.KindCreate, Facts: thirty}
	orphan := update{Kind: podsync.KindKill, Orphan: true}
	for _, tc := range []struct {
		name   string
		before []update // acted on one by one
		quiet  bool
		update update
		refuse podsync.Refusal
		first  *seen // before any step
		then   seen
	}{
		{
			name:   "a new pod is recorded and started",
			update: create, then: seen{State: podsync.Syncing},
		},
		{
			name:   "a create on a UID that is ending only flags a restart",
			before: []update{create, {Kind: podsync.KindKill, Facts: thirty}},
			update: create, refuse: podsync.RestartFlagged,
			then: seen{State: podsync.Finished, Restart: true, Grace: 30},
		},
		{
			name:   "a running pod is terminated when an update carries a deletion stamp",
			before: []update{create}, update: update{Kind: podsync.KindUpdate, Facts: deleting},
			then: seen{State: podsync.Finished, Removable: true, Grace: 15},
		},
		{
			name:   "a running pod is terminated when an eviction is requested",
			before: []update{create}, update: update{Kind: podsync.KindKill, Facts: thirty, Kill: &podsync.Kill{Evict: true}},
			then: seen{State: podsync.Finished, Removable: true, Grace: 30},
		},
		{
			name:   "a terminal pod that has never started is terminated when the runtime may still run it",
			update: update{Kind: podsync.KindCreate, Facts: ended},
			then:   seen{State: podsync.Finished, Grace: 30},
		},
		{
			name:   "a terminal pod of which the runtime runs nothing has only its freeing left",
			update: update{Kind: podsync.KindCreate, Facts: ended}, quiet: true,
			first: &seen{State: podsync.Terminated, Waiting: true},
			then:  seen{State: podsync.Finished},
		},
		{
			name:   "an orphan of the runtime is terminated and then forgotten",
			update: orphan,
			first:  &seen{State: podsync.Terminating, Waiting: true},
			then:   seen{State: podsync.Finished, Removable: true, Grace: 1},
		},
		{
			name:   "an orphan update that is no kill does nothing",
			update: update{Kind: podsync.KindCreate, Orphan: true}, refuse: podsync.OrphanNotKilled,
		},
		{
			name:   "an orphan update of a known pod ends it by its configuration",
			before: []update{create}, update: orphan,
			then: seen{State: podsync.Finished, Removable: true, Grace: 30},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var w *worker
			var refused podsync.Refusal
			for i, u := range tc.before {
				if i == 0 {
					w, _ = podsync.NewWorker(u, false)
					live(w)
				} else if _, r := w.Offer(u); r != podsync.None {
					t.Fatalf("Offer(%d) = %v", i, r)
				}
			}
			if w == nil {
				w, refused = podsync.NewWorker(tc.update, tc.quiet)
			} else {
				_, refused = w.Offer(tc.update)
			}
			if refused != tc.refuse {
				t.Errorf("refused = %v, want %v", refused, tc.refuse)
			}
			if w == nil {
				return
			}
			if tc.first != nil {
				if diff := cmp.Diff(look(w, 0), *tc.first); diff != "" {
					t.Errorf("before the first step (-got +want):\n%s", diff)
				}
			}
			if diff := cmp.Diff(look(w, live(w)), tc.then); diff != "" {
				t.Errorf("in the end (-got +want):\n%s", diff)
			}
		})
	}
}

func TestCalculateEffectiveGracePeriod(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		current        int64
		spec, deletion *int64
		kill           *int64
		want           int64
		shorter        bool
	}{
		{name: "the spec's", spec: new(int64(30)), want: 30},
		{name: "the deletion's is shorter", spec: new(int64(30)), deletion: new(int64(5)), want: 5},
		{name: "the kill's is shorter still", spec: new(int64(30)), deletion: new(int64(5)), kill: new(int64(2)), want: 2},
		{name: "none is one second", spec: new(int64(30)), deletion: new(int64(0)), want: 1},
		{name: "a kill at once is one second", spec: new(int64(30)), deletion: new(int64(5)), kill: new(int64(0)), want: 1},
		{name: "nothing given is one second", want: 1},
		{name: "it does not grow", current: 5, spec: new(int64(30)), deletion: new(int64(20)), kill: new(int64(10)), want: 5},
		{name: "what shortens says so", current: 30, deletion: new(int64(5)), want: 5, shorter: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, shorter := podsync.Grace(tc.current, podsync.Facts{DeletionGrace: tc.deletion, SpecGrace: tc.spec}, &podsync.Kill{Grace: tc.kill})
			if got != tc.want || shorter != tc.shorter {
				t.Errorf("Grace() = %d, %t, want %d, %t", got, shorter, tc.want, tc.shorter)
			}
		})
	}
}

func TestWhatCancelsTheStepUnderWay(t *testing.T) {
	t.Parallel()
	spec := podsync.Facts{SpecGrace: new(int64(30))}
	start := func() *worker {
		w, _ := podsync.NewWorker(update{Kind: podsync.KindCreate, Facts: spec}, false)
		w.Next()
		return w
	}
	offer := func(t *testing.T, w *worker, u update, want bool, why string) {
		t.Helper()
		if cancel, refused := w.Offer(u); cancel != want || refused != podsync.None {
			t.Errorf("Offer(%s) = %t, %v, want %t", why, cancel, refused, want)
		}
	}
	w := start()
	offer(t, w, update{Kind: podsync.KindUpdate, Facts: spec}, false, "a change")
	offer(t, w, update{Kind: podsync.KindKill, Facts: spec}, true, "the end")
	offer(t, w, update{Kind: podsync.KindKill, Facts: spec}, false, "the same end again")
	offer(t, w, update{Kind: podsync.KindKill, Facts: spec, Kill: &podsync.Kill{Grace: new(int64(5))}}, true, "less grace")
	offer(t, w, update{Kind: podsync.KindKill, Facts: spec, Kill: &podsync.Kill{Grace: new(int64(9))}}, false, "more grace")
	w.Complete(podsync.Failed)
	work, ok := w.Next()
	if !ok || work.State != podsync.Terminating || work.Grace != 5 {
		t.Errorf("Next() = %v, %t, want the end in 5 s", work, ok)
	}
}

func TestTheLatestUpdateReplacesTheOneThatWaits(t *testing.T) {
	t.Parallel()
	w, _ := podsync.NewWorker(update{Kind: podsync.KindCreate, Body: "first", Begin: at(1)}, false)
	w.Offer(update{Kind: podsync.KindUpdate, Body: "second", Begin: at(2)})
	w.Offer(update{Kind: podsync.KindSync, Body: "third", Begin: at(3)})
	work, ok := w.Next()
	if !ok || work.Update.Body != "third" || !work.Update.Begin.Equal(at(1)) {
		t.Errorf("Next() = %v, %t, want the third update with the first's begin", work, ok)
	}
	if _, ok := w.Next(); ok {
		t.Error("Next() gave a second step while the first is under way")
	}
	w.Complete(podsync.Succeeded)
	if w.Waiting() {
		t.Error("an update still waits: updates that were replaced must be gone")
	}
}

func TestAKillIsNotForgottenForALaterUpdate(t *testing.T) {
	t.Parallel()
	// Upstream's TestUpdatePodDoesNotForgetSyncPodKill.
	w, _ := podsync.NewWorker(update{Kind: podsync.KindCreate}, false)
	w.Next()
	w.Offer(update{Kind: podsync.KindKill})
	w.Offer(update{Kind: podsync.KindUpdate})
	w.Complete(podsync.Failed)
	if work, _ := w.Next(); work.State != podsync.Terminating {
		t.Errorf("Next() is %v, want terminating", work.State)
	}
}

func TestAPodThatHasRunItsCourseTerminatesWithoutAnotherUpdate(t *testing.T) {
	t.Parallel()
	w, _ := podsync.NewWorker(update{Kind: podsync.KindCreate, Facts: podsync.Facts{SpecGrace: new(int64(7))}}, false)
	w.Next()
	if moved, gone := w.Complete(podsync.Ended); !moved || gone || !w.Waiting() {
		t.Fatalf("Complete(Ended) = %t, %t, want moved, and the next step waiting", moved, gone)
	}
	for _, want := range []podsync.State{podsync.Terminating, podsync.Terminated} {
		work, ok := w.Next()
		if !ok || work.State != want || want == podsync.Terminating && work.Grace != 7 {
			t.Fatalf("Next() = %v, %t, want %v", work, ok, want)
		}
		w.Complete(podsync.Succeeded)
	}
	if w.State() != podsync.Finished {
		t.Errorf("State() = %v, want finished", w.State())
	}
	if _, refused := w.Offer(update{Kind: podsync.KindUpdate}); refused != podsync.AlreadyFinished {
		t.Errorf("Offer() of a finished worker = %v, want a refusal", refused)
	}
}

func TestAStepThatFailsIsTakenAgainInTheSameState(t *testing.T) {
	t.Parallel()
	w, _ := podsync.NewWorker(update{Kind: podsync.KindKill, Body: "pod"}, false)
	for range 3 {
		work, ok := w.Next()
		if !ok || work.State != podsync.Terminating || work.Update.Body != "pod" {
			t.Fatalf("Next() = %v, %t, want terminating", work, ok)
		}
		if moved, gone := w.Complete(podsync.Failed); moved || gone {
			t.Fatalf("Complete(Failed) = %t, %t, want neither", moved, gone)
		}
		if !w.Again() { // due work of a pod whose configuration is gone
			t.Fatal("Again() = false, want the last update to wait once more")
		}
	}
}

// The rows of upstream's TestSyncKnownPods and Test_removeTerminatedWorker.
func TestPurge(t *testing.T) {
	t.Parallel()
	spec := podsync.Facts{SpecGrace: new(int64(30))}
	begun := func() *worker {
		w, _ := podsync.NewWorker(update{Kind: podsync.KindCreate, Facts: spec}, false)
		w.Next()
		w.Complete(podsync.Succeeded)
		return w
	}
	finished := func() *worker {
		w := begun()
		w.Offer(update{Kind: podsync.KindKill, Facts: spec})
		live(w)
		return w
	}
	for _, tc := range []struct {
		name         string
		w            *worker
		unwanted     bool
		gone, cancel bool
		state        podsync.State
		waiting      bool
	}{
		{name: "a finished worker is forgotten", w: finished(), gone: true, state: podsync.Finished},
		{name: "a finished worker whose pod is wanted no longer is forgotten", w: finished(), unwanted: true, gone: true, state: podsync.Finished},
		{name: "a worker that has not finished stays while its pod is wanted", w: begun(), state: podsync.Syncing},
		{name: "a worker of a pod that is gone begins to end", w: begun(), unwanted: true, state: podsync.Terminating, waiting: true},
		{
			name: "a sync under way of a pod that is gone is cancelled", unwanted: true, state: podsync.Terminating, cancel: true, waiting: true,
			w: func() *worker {
				w := begun()
				w.Offer(update{Kind: podsync.KindSync, Facts: spec})
				w.Next()
				return w
			}(),
		},
		{
			name: "a worker that never began is forgotten", unwanted: true, gone: true, state: podsync.Finished,
			w: func() *worker { w, _ := podsync.NewWorker(update{Kind: podsync.KindCreate}, false); return w }(),
		},
		{
			name: "an orphan of the runtime that never began is driven to its end", unwanted: true, state: podsync.Terminating, waiting: true,
			w: func() *worker {
				w, _ := podsync.NewWorker(update{Kind: podsync.KindKill, Orphan: true}, false)
				return w
			}(),
		},
		{
			name: "a worker that is ending goes on", unwanted: true, state: podsync.Terminating, waiting: true,
			w: func() *worker {
				w := begun()
				w.Offer(update{Kind: podsync.KindKill, Facts: spec})
				w.Next()
				w.Complete(podsync.Failed)
				return w
			}(),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			gone, cancel := tc.w.Purge(tc.unwanted)
			if gone != tc.gone || cancel != tc.cancel || tc.w.State() != tc.state || tc.w.Waiting() != tc.waiting {
				t.Errorf("Purge() = %t, %t in %v waiting %t, want %t, %t in %v waiting %t",
					gone, cancel, tc.w.State(), tc.w.Waiting(), tc.gone, tc.cancel, tc.state, tc.waiting)
			}
		})
	}
}

func TestAnOrphanThatHasEndedIsForgotten(t *testing.T) {
	t.Parallel()
	w, _ := podsync.NewWorker(update{Kind: podsync.KindKill, Orphan: true}, false)
	work, ok := w.Next()
	if !ok || work.State != podsync.Terminating || work.Grace != 1 {
		t.Fatalf("Next() = %v, %t, want terminating within a second", work, ok)
	}
	if _, refused := w.Offer(update{Kind: podsync.KindKill, Orphan: true}); refused != podsync.None {
		t.Errorf("Offer() = %v, want none", refused)
	}
	if moved, gone := w.Complete(podsync.Succeeded); !moved || !gone {
		t.Errorf("Complete() = %t, %t, want the worker gone", moved, gone)
	}
}
