package why

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// dead is why a key is kept aside.
func (f *Facts) dead() []finding {
	again := fmt.Sprintf(`then "deltaplane queue retry %s %s"`, f.Queue, f.Key)
	failed := classify(f.Item.Reason)
	var is finding
	switch last := f.lastSettled(); {
	case len(f.Item.Holders) > 0:
		is = finding{
			PoisonKey, fmt.Sprintf("the key is dead because every worker that held it was lost before it settled (%s; the last: %s)", f.Item.Reason, strings.Join(f.Item.Holders, ", ")),
			"find out from these workers' last words what in it ends them, mend that, " + again,
		}
	case f.Config.MaxRetries > 0 && f.Item.Requeues >= f.Config.MaxRetries && (last == nil || last.Outcome != workqueue.Dead):
		is = finding{
			MaxRetries, fmt.Sprintf("the key is dead because it failed %d times, the queue's max_retries, the last time with: %s", f.Config.MaxRetries, said(f.Item.Reason)),
			"mend what fails, " + again,
		}
	default:
		is = finding{Terminal, "the key is dead because its worker gave it up: " + said(f.Item.Reason), "mend what it says, " + again}
	}
	if failed == nil {
		return []finding{is}
	}
	return []finding{is, *failed}
}

// held is why a key that somebody has does not get on.
func (f *Facts) held() []finding {
	holder, since := f.holder(), f.since()
	held := f.StoreTime.Sub(since)
	if silent := f.silentFor(); silent > 0 {
		if f.Holder != nil && !f.Holder.Connected {
			holder += ", whose stream is closed"
		}
		out := []finding{{
			HolderStopped, fmt.Sprintf("the key waits for the end of the lease of %s at %s, which has not extended it for %v and seems to be stopped or cut off", holder, clock(f.Item.Deadline), plain(silent)),
			fmt.Sprintf(`continue or end that process, or take the key from it with "deltaplane queue release %s %s"`, f.Queue, f.Key),
		}}
		if step := f.stepped(); step != nil { // why the lease lasts
			out = append([]finding{*step}, out...)
		}
		return out
	}
	if b := f.barrier(); b != nil {
		return []finding{*b}
	}
	if lease := f.lease(); held > lease {
		return []finding{{
			StuckHolder, fmt.Sprintf("the key waits for %s, which has held it for %v and still extends its lease of %v: its reconcile has not returned", holder, plain(held), lease),
			fmt.Sprintf(`look at what that process does (its stacks), set max_processing so that this ends by itself, or take the key with "deltaplane queue release %s %s"`, f.Queue, f.Key),
		}}
	}
	what := fmt.Sprintf("the key runs: %s has held it for %v", holder, plain(max(held, 0)))
	if f.Item.State == workqueue.Dirty {
		what += ", and it runs once more after that because it was added meanwhile"
	}
	return []finding{{Running, what, ""}}
}

func (f *Facts) lease() time.Duration {
	if f.Holder != nil && f.Holder.Lease > 0 {
		return f.Holder.Lease
	}
	return f.Config.LeaseFor
}

func (f *Facts) holder() string {
	if f.Holder != nil && f.Holder.Client != "" {
		return fmt.Sprintf("%s (session %s)", f.Holder.Client, f.Item.Holder)
	}
	return "session " + cmp.Or(f.Item.Holder, "of nobody known")
}

// silentFor is how long the holder has not extended its lease, once that is longer than a worker
// that runs takes; zero before.
func (f *Facts) silentFor() time.Duration {
	lease := f.lease()
	left := f.Item.Deadline.Sub(f.StoreTime)
	silent := lease - left
	if f.Holder == nil { // nobody said how long its lease is
		if left < lease/3 {
			return silent
		}
		return 0
	}
	if silent > lease/2 {
		return silent
	}
	return 0
}

// ready is why a key that could run is not handed out.
func (f *Facts) ready() []finding {
	switch limit := f.Config.Dispatch; {
	case f.Paused:
		return []finding{f.paused()}
	case f.HeldUntil.After(f.StoreTime):
		return []finding{{
			StoreRestarted, fmt.Sprintf("the key waits until %s because the store was restarted or failed over, and workers may still hold what it forgot", clock(f.HeldUntil)),
			"nothing has to be done; a shorter max_lease shortens this",
		}}
	case f.Workers == 0 && f.Counts.Processing+f.Counts.Dirty == 0:
		return []finding{{
			NoWorker, fmt.Sprintf("the key waits for a worker: none is connected for %s to the server that answered, and no key of it is held", f.Queue),
			"start the controller, or see why it does not reach the queue",
		}}
	case limit != nil && f.Free > 0:
		return []finding{{
			BucketExhausted, fmt.Sprintf("the key waits for a token of the queue's dispatch limiter (%g keys a second, %d at once) with %d keys ready, so for %v at most",
				limit.QPS, limit.Burst, f.Counts.Ready, plain(time.Duration(float64(f.Counts.Ready)/limit.QPS*float64(time.Second)))),
			`raise it with "deltaplane queue configure ` + f.Queue + ` --dispatch-limiter" if that is too slow`,
		}}
	case f.Free == 0:
		what := fmt.Sprintf("the key waits for a free worker: %d connected, all busy, with %d keys ready and %d held", f.Workers, f.Counts.Ready, f.Counts.Processing+f.Counts.Dirty)
		if f.Item.Priority < 0 {
			what += fmt.Sprintf(", and keys of a priority above its %d go first", f.Item.Priority)
		}
		return []finding{{WorkersBusy, what, "add workers or concurrency if this lasts"}}
	}
	return []finding{{NextInLine, "the key is about to be handed out", ""}}
}

// delayed is why a key waits for its time.
func (f *Facts) delayed() []finding {
	var out []finding
	if step := f.stepped(); step != nil {
		out = append(out, *step)
	}
	failed := classify(f.Item.Reason)
	mirror := f.barrier()
	if failed == nil && mirror != nil && (f.gaveBack() || f.Item.Requeues > 0) {
		return append(out, *mirror)
	}
	if f.Item.Requeues == 0 && failed == nil {
		what := fmt.Sprintf("the key is delayed until %s, as its add or its last run asked for", clock(f.Item.DelayedUntil))
		return append(out, finding{Delayed, what, fmt.Sprintf(`"deltaplane queue retry %s %s" runs it now`, f.Queue, f.Key)})
	}
	back := f.backoff()
	if failed != nil {
		failed.waits += ", and the key " + back.waits
		out = append(out, *failed)
	}
	back.waits = "the key " + back.waits
	if f.Item.Reason != "" {
		back.waits += ": " + said(f.Item.Reason)
	}
	return append(out, back)
}

// idle is why nothing happens for a key that nobody queued.
func (f *Facts) idle() []finding {
	what := "the key does not wait: nothing is queued for it"
	if last := f.lastSettled(); last != nil {
		what += fmt.Sprintf(" since its last run ended at %s", clock(last.At))
	}
	switch {
	case f.RefusesAdds != "":
		return []finding{f.full()}
	case f.Closed:
		return []finding{f.closed()}
	}
	if still := f.standstill(); still != nil {
		return []finding{*still, {None, what, ""}}
	}
	return []finding{{None, what, `a change of its object, or "deltaplane queue add", runs it`}}
}

func (f *Facts) lastSettled() *Event {
	for i := range f.History {
		if f.History[i].Kind == Settled {
			return &f.History[i]
		}
	}
	return nil
}

func said(reason string) string { return cmp.Or(reason, "no reason was given") }
