package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Entry is one line of a timeline.
type Entry struct {
	// Time is by the store's clock; zero for what holds now.
	Time time.Time `json:"time,omitzero"`
	What string    `json:"what"`
	// By is the session that did it or that it happened to.
	By string `json:"by,omitempty"`
	// Detail is why, or more of what happened.
	Detail string `json:"detail,omitempty"`
}

var outcomes = map[workqueue.Outcome]string{
	workqueue.Done: "done", workqueue.Forget: "done and forgotten", workqueue.Retry: "retry", workqueue.After: "run again later",
	workqueue.Release: "given back", workqueue.Dead: "dead",
}

// timeline is what happened, the oldest first, and then what holds now.
func (f *Facts) timeline() []Entry {
	out := []Entry{}
	for _, e := range slices.Backward(f.History) {
		out = append(out, e.entry()...)
	}
	for _, w := range f.Written {
		what, detail := "not seen yet", fmt.Sprintf("%s %s: the index has %s, written was %s", w.Collection, w.Key, cmp.Or(w.Shown, "none"), cmp.Or(w.RV, "its deletion"))
		if w.Visible {
			what = "came back"
		}
		out = append(out, Entry{What: what, Detail: detail})
	}
	for _, m := range f.Item.Barrier {
		is, known, at := f.met(m)
		state := "which is at " + cmp.Or(at, "nothing")
		switch {
		case !known:
			state = "which did not answer"
		case is:
			state += ", so it is met"
		}
		out = append(out, Entry{What: "barrier", Detail: fmt.Sprintf("%s at %s of the index, %s", m.Collection, m.RV, state)})
	}
	switch f.Item.State {
	case workqueue.Waiting:
		out = append(out, Entry{What: "delayed", Detail: fmt.Sprintf("until %s, in %v; rate-limited %d times", clock(f.Item.DelayedUntil), plain(f.waitOf(f.Item.DelayedUntil)), f.Item.Requeues)})
	case workqueue.Processing, workqueue.Dirty:
		out = append(out, Entry{What: "held", By: f.Item.Holder, Detail: fmt.Sprintf("lease ends at %s, in %v; attempt %d", clock(f.Item.Deadline), plain(f.waitOf(f.Item.Deadline)), f.Item.Attempt)})
	case workqueue.Ready:
		out = append(out, Entry{What: "ready", Detail: fmt.Sprintf("since %s, one of %d, priority %d", clock(f.Item.ReadyAt), f.Counts.Ready, f.Item.Priority)})
	case workqueue.StateDead:
		out = append(out, Entry{What: "dead", Detail: f.Item.Reason})
	}
	return out
}

func (e Event) entry() (out []Entry) {
	in := Entry{Time: e.At, By: e.Session, Detail: e.Reason}
	switch e.Kind {
	case Settled:
		in.What = "settled: " + outcomes[e.Outcome]
	case Operator:
		in.What = "operator: " + e.Reason
		in.Detail = ""
	default:
		in.What = string(e.Kind)
	}
	var more []string
	for _, m := range e.Cause {
		more = append(more, fmt.Sprintf("event of %s at %s", m.Collection, m.RV))
	}
	if e.Repeats > 0 {
		more = append(more, fmt.Sprintf("%d times", e.Repeats+1))
	}
	if e.Held > 0 {
		more = append(more, fmt.Sprintf("held for %v", plain(e.Held)))
	}
	if in.Detail != "" {
		more = append(more, in.Detail)
	}
	in.Detail = strings.Join(more, "; ")
	for _, w := range e.Writes {
		out = append(out, Entry{Time: e.At, What: "wrote", By: e.Session, Detail: strings.TrimSpace(fmt.Sprintf("%s %s %s %s", w.Verb, w.Collection, w.Key, w.RV))})
	}
	return append(out, in)
}
