package why_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

var now = time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)

// facts are those of a queue in order, changed.
func facts(change func(*why.Facts)) *why.Facts {
	f := &why.Facts{
		Queue: "dev/a", Key: "k", Now: now, StoreTime: now, QueueKnown: true, Config: workqueue.Config{}.WithDefaults(), Workers: 1, Free: 1,
		Collections: []why.Collection{{Name: "dev/pods.v1", Synced: true, Revision: delta.Revision{Epoch: 1, RV: "100"}, LiveAt: now}},
		Reflections: []why.Reflection{{Collection: "dev/pods.v1", Revision: delta.Revision{Epoch: 1, RV: "120"}, Well: true}},
	}
	change(f)
	return f
}

func mark(collection, rv string) workqueue.Barrier {
	return workqueue.Barrier{{Collection: collection, Epoch: 1, RV: rv}}
}

// retried is a key that a limiter delayed after a failure.
func retried(f *why.Facts, requeues int, wait time.Duration, reason string) {
	f.Item = why.Item{State: workqueue.Waiting, Requeues: requeues, DelayedUntil: now.Add(wait - time.Second), Reason: reason}
	f.History = []why.Event{{Kind: why.Settled, Outcome: workqueue.Retry, At: now.Add(-time.Second), Reason: reason}}
}

func held(f *why.Facts, since, left time.Duration) {
	f.Item = why.Item{State: workqueue.Processing, Holder: "w", Deadline: now.Add(left), Attempt: 1}
	f.History = []why.Event{{Kind: why.Leased, At: now.Add(-since), Session: "w"}}
	f.Holder = &why.Holder{Connected: true, Client: "job-0", Lease: 30 * time.Second}
}

func TestOneCauseIsNamedForEachState(t *testing.T) {
	t.Parallel()
	webhook := `admission webhook "a.b" denied the request: no`
	for name, c := range map[string]struct {
		change func(*why.Facts)
		want   why.Cause
		also   []why.Cause
		says   string
	}{
		"a run that has just begun": {func(f *why.Facts) { held(f, time.Second, 29*time.Second) }, why.Running, nil, "job-0"},
		"a run that was added again meanwhile": {func(f *why.Facts) {
			held(f, time.Second, 29*time.Second)
			f.Item.State = workqueue.Dirty
		}, why.Running, nil, "once more"},
		"a run that waits for the index": {func(f *why.Facts) {
			held(f, time.Second, 29*time.Second)
			f.Item.Barrier = mark("dev/pods.v1", "110")
		}, why.IndexLagging, nil, "the index is at 100"},
		"a run whose barrier is met": {func(f *why.Facts) {
			held(f, time.Second, 29*time.Second)
			f.Item.Barrier = mark("dev/pods.v1", "100")
		}, why.Running, nil, ""},
		"a run that extends for a minute": {func(f *why.Facts) { held(f, time.Minute, 25*time.Second) }, why.StuckHolder, nil, "held it for 1m0s"},
		"a holder that does not extend":   {func(f *why.Facts) { held(f, 20*time.Second, 10*time.Second) }, why.HolderStopped, nil, "for 20s"},
		"a holder whose process is gone": {func(f *why.Facts) {
			held(f, 29500*time.Millisecond, 500*time.Millisecond)
			f.Holder.Connected = false
		}, why.HolderStopped, nil, "whose stream is closed"},
		"a holder that only the store knows": {func(f *why.Facts) {
			held(f, 25*time.Second, 5*time.Second)
			f.Holder = nil
		}, why.HolderStopped, nil, "session w"},
		"a reflector that has not read the change": {func(f *why.Facts) {
			held(f, time.Second, 29*time.Second)
			f.Item.Barrier = mark("dev/pods.v1", "130")
		}, why.MirrorFailing, nil, "only up to 120"},
		"a reflector that may not read": {func(f *why.Facts) {
			held(f, time.Second, 29*time.Second)
			f.Item.Barrier = mark("dev/pods.v1", "130")
			f.Reflections[0].Well, f.Reflections[0].Reason, f.Reflections[0].LastError = false, "FORBIDDEN", "no"
		}, why.MirrorFailing, nil, "FORBIDDEN: no"},
		"a reflector that cannot write": {func(f *why.Facts) {
			held(f, time.Second, 29*time.Second)
			f.Item.Barrier = mark("dev/pods.v1", "130")
			f.Reflections[0].Reason = "LOG_UNAVAILABLE"
		}, why.LogDead, nil, "NATS"},
		"a collection that is not read yet": {func(f *why.Facts) {
			held(f, time.Second, 29*time.Second)
			f.Item.Barrier = mark("dev/pods.v1", "90")
			f.Collections[0].Synced = false
		}, why.IndexUnsynced, nil, ""},
		"a webhook that denies": {func(f *why.Facts) { retried(f, 1, 5*time.Millisecond, webhook) }, why.AdmissionDeny, []why.Cause{why.Backoff}, `"a.b"`},
		"a policy that denies": {func(f *why.Facts) {
			retried(f, 1, 5*time.Millisecond, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
		}, why.AdmissionDeny, []why.Cause{why.Backoff}, `policy "p"`},
		"a failure of its own":     {func(f *why.Facts) { retried(f, 2, 10*time.Millisecond, "no luck") }, why.Backoff, nil, "10ms (attempt 2)"},
		"a bucket that many share": {func(f *why.Facts) { retried(f, 1, time.Minute, "no luck") }, why.BucketExhausted, nil, "1m0s and not the 5ms of its own"},
		"a limiter without a bucket": {func(f *why.Facts) {
			f.Config.Limiter = new(backoff.PriorityQueue())
			retried(f, 1, time.Minute, "no luck")
		}, why.Backoff, nil, ""},
		"a barrier that made a run give the key back": {func(f *why.Facts) {
			retried(f, 0, time.Second, "REVISION_NOT_REACHED")
			f.Item.Barrier = mark("dev/pods.v1", "110")
		}, why.IndexLagging, nil, ""},
		"an index that does not answer": {func(f *why.Facts) {
			retried(f, 0, time.Second, "REVISION_NOT_REACHED")
			f.Item.Barrier, f.Collections = mark("dev/pods.v1", "110"), nil
			f.Silent = []why.Silence{{Part: why.PartIndex, Why: "refused"}}
		}, why.IndexSilent, nil, "refused"},
		"a delay in a queue that is paused": {func(f *why.Facts) {
			f.Item = why.Item{State: workqueue.Waiting, DelayedUntil: now.Add(time.Hour)}
			f.Paused = true
		}, why.Delayed, []why.Cause{why.QueuePaused}, "2026-01-02T16:00:00Z"},
		"a store that was restarted": {func(f *why.Facts) {
			f.Item.State, f.HeldUntil = workqueue.Ready, now.Add(time.Second)
		}, why.StoreRestarted, nil, ""},
		"workers of other servers": {func(f *why.Facts) {
			f.Item.State, f.Workers, f.Free, f.Counts.Processing = workqueue.Ready, 0, 0, 3
		}, why.WorkersBusy, nil, "3 held"},
		"a free worker":                 {func(f *why.Facts) { f.Item.State = workqueue.Ready }, why.NextInLine, nil, ""},
		"nothing":                       {func(*why.Facts) {}, why.None, nil, "does not wait"},
		"a store that may drop keys":    {func(f *why.Facts) { f.RefusesAdds = "STORE_UNFIT" }, why.StoreFull, nil, "noeviction"},
		"a clock that is an hour ahead": {func(f *why.Facts) { f.Item.State, f.StoreTime = workqueue.Waiting, now.Add(time.Hour) }, why.ClockStep, []why.Cause{why.Delayed}, "1h0m0s away"},
		"a dead key with its own words": {func(f *why.Facts) {
			f.Item = why.Item{State: workqueue.StateDead, Reason: webhook}
		}, why.Terminal, []why.Cause{why.AdmissionDeny}, "gave it up"},
		"a queue that does not answer": {func(f *why.Facts) {
			*f = why.Facts{Queue: "dev/a", Key: "k", Silent: []why.Silence{{Part: why.PartQueue, Why: "refused"}}}
		}, why.QueueSilent, nil, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := why.Explain(facts(c.change))
			if a.Cause != c.want || !slices.Equal(a.Also, c.also) || !strings.Contains(a.Sentence, c.says) {
				t.Errorf("the cause is %s, also %v: %s\nwant %s, also %v, and %q", a.Cause, a.Also, a.Sentence, c.want, c.also, c.says)
			}
			if !strings.HasSuffix(a.Sentence, ".") || a.Timeline == nil {
				t.Errorf("no sentence, or no timeline: %+v", a)
			}
		})
	}
}

func TestTheTimelineBeginsWithTheOldestAndEndsWithWhatHoldsNow(t *testing.T) {
	t.Parallel()
	a := why.Explain(facts(func(f *why.Facts) {
		f.Item = why.Item{State: workqueue.Waiting, Requeues: 1, DelayedUntil: now.Add(time.Second), Barrier: mark("dev/pods.v1", "110")}
		f.History = []why.Event{
			{Kind: why.Settled, At: now, Session: "w", Outcome: workqueue.Retry, Reason: "no luck", Held: time.Second},
			{Kind: why.Leased, At: now.Add(-time.Second), Session: "w"},
			{Kind: why.Added, At: now.Add(-time.Minute), Repeats: 2},
		}
	}))
	var got []string
	for _, e := range a.Timeline {
		got = append(got, e.What+"|"+e.Detail)
	}
	want := []string{
		"added|3 times", "leased|", "settled: retry|held for 1s; no luck", "barrier|dev/pods.v1 at 110 of the index, which is at 100",
		"delayed|until 2026-01-02T15:00:01Z, in 1s; rate-limited 1 times",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the timeline is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
