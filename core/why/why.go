package why

import (
	"fmt"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// skew is how far the store's clock may be from this machine's before it is worth a word.
const skew = time.Minute

// Explain answers from facts.
func Explain(f *Facts) *Answer {
	a := &Answer{Queue: f.Queue, Key: f.Key, State: states[f.Item.State], Silent: f.Silent, Timeline: f.timeline()}
	all := f.findings()
	a.Cause, a.Sentence = all[0].cause, all[0].sentence()
	for _, more := range all[1:] {
		if more.cause != a.Cause && !slices.Contains(a.Also, more.cause) {
			a.Also = append(a.Also, more.cause)
		}
	}
	if !f.QueueKnown {
		a.State = "unknown"
	}
	return a
}

var states = map[workqueue.State]string{
	workqueue.Idle: "idle", workqueue.Ready: "ready", workqueue.Waiting: "delayed", workqueue.Processing: "processing",
	workqueue.Dirty: "dirty", workqueue.StateDead: "dead",
}

// findings are the causes that hold, the first the one that keeps the key now.
func (f *Facts) findings() []finding {
	if f.NoQueue {
		return []finding{{
			QueueUnknown, fmt.Sprintf("nobody has configured the queue %s, so no controller works on its keys%s", f.Queue, brackets(f.There)),
			"start the controller that it belongs to, or name the queue that is meant",
		}}
	}
	if !f.QueueKnown {
		why, _ := f.silence(PartQueue)
		return []finding{{QueueSilent, "nobody can tell what the key waits for, because the queue service did not answer: " + why, "make the queue service and its store reachable"}}
	}
	var out []finding
	switch f.Item.State {
	case workqueue.StateDead:
		out = f.dead()
	case workqueue.Processing, workqueue.Dirty:
		out = f.held()
	case workqueue.Ready:
		out = f.ready()
	case workqueue.Waiting:
		out = f.delayed()
	default:
		out = f.idle()
	}
	return append(out, f.around()...)
}

// around are what keeps the next key, or the next event of this one.
func (f *Facts) around() (out []finding) {
	if f.RefusesAdds != "" {
		out = append(out, f.full())
	}
	if f.Paused {
		out = append(out, f.paused())
	}
	if f.Closed {
		out = append(out, f.closed())
	}
	if step := f.stepped(); step != nil {
		out = append(out, *step)
	}
	return out
}

func (f *Facts) full() finding {
	why, help := "is full", "give the store more memory, or work off what it holds"
	if f.RefusesAdds == "STORE_UNFIT" {
		why, help = "may drop keys by itself", "set its maxmemory-policy to noeviction"
	}
	return finding{StoreFull, fmt.Sprintf("the queue takes no adds because its store %s (%s), so what changed since is not queued", why, f.RefusesAdds), help}
}

func (f *Facts) paused() finding {
	return finding{QueuePaused, "the key waits because the queue " + f.Queue + " is paused", `"deltaplane queue resume ` + f.Queue + `" has it hand out keys again`}
}

func (f *Facts) closed() finding {
	return finding{QueueClosed, "the queue " + f.Queue + " is closed, as a drain leaves it, and takes no adds", `"deltaplane queue open ` + f.Queue + `" has it take keys again`}
}

// stepped is a step of the clock that changed how long the key waits; nil for none.
func (f *Facts) stepped() *finding {
	if s := f.Step; s != nil && f.waitsForTime() && !s.At.Before(f.since()) {
		return &finding{
			ClockStep, fmt.Sprintf("%s, and the store's clock stepped by %v at %s meanwhile, so that it may wait one lease time (%v) longer",
				f.until(), plain(-s.By), clock(s.At), plain(f.Config.MaxLease)), "nothing has to be done; keep the clocks of the store's machines in step",
		}
	}
	if off := f.StoreTime.Sub(f.Now); !f.StoreTime.IsZero() && f.waitsForTime() && off.Abs() > skew {
		return &finding{
			ClockStep, fmt.Sprintf("%s by the store's clock, which is %v away from the clock of this machine", f.until(), plain(off)),
			"set the clock that is wrong; the queue itself goes on as before",
		}
	}
	return nil
}

func (f *Facts) waitsForTime() bool {
	switch f.Item.State {
	case workqueue.Waiting, workqueue.Processing, workqueue.Dirty:
		return true
	}
	return false
}

// until is for what moment the key waits.
func (f *Facts) until() string {
	if f.Item.State == workqueue.Waiting {
		return "the key is delayed until " + clock(f.Item.DelayedUntil)
	}
	return "the key is held by " + f.holder() + " until " + clock(f.Item.Deadline) + " unless that extends its lease"
}

// since is when the present wait began, as far as is known.
func (f *Facts) since() time.Time {
	for _, e := range f.History {
		if e.Kind == Leased || e.Kind == Settled || e.Kind == Added {
			return e.At
		}
	}
	return f.Item.AddedAt
}

func (f *Facts) silence(part string) (why string, silent bool) {
	for _, s := range f.Silent {
		if s.Part == part {
			return s.Why, true
		}
	}
	return "", false
}

func brackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// plain is a duration without digits that nobody reads.
func plain(d time.Duration) time.Duration {
	switch {
	case d.Abs() >= 10*time.Second:
		return d.Round(time.Second)
	case d.Abs() >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d.Abs() >= time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d
}

func clock(at time.Time) string {
	if at.IsZero() {
		return "an unknown time"
	}
	return at.UTC().Format("2006-01-02T15:04:05Z")
}
