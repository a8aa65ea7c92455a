package history

import (
	"cmp"
	"fmt"
	"slices"
)

// oneSettle: at most one settlement of a lease is accepted.
func oneSettle(k *keyHistory, _ int64) (out []Violation) {
	first := map[uint64]operation{}
	for _, o := range k.settles {
		if !o.accepted() {
			continue
		}
		token := o.invoke.Token
		if was, twice := first[token]; twice {
			out = append(out, Violation{RuleOneSettle, k.key, fmt.Sprintf("token %d was settled twice", token), []Event{was.invoke, was.end, o.invoke, o.end}})
		}
		first[token] = o
	}
	return out
}

// fencing: who settles after a later lease of the key has reached a worker is refused.
func fencing(k *keyHistory, _ int64) (out []Violation) {
	top := make([]Event, len(k.leases)) // the greatest token among the first leases
	for i, l := range k.leases {
		top[i] = l.event
		if i > 0 && top[i-1].Token > l.event.Token {
			top[i] = top[i-1]
		}
	}
	for _, o := range k.settles {
		if !o.accepted() {
			continue
		}
		n, _ := slices.BinarySearchFunc(k.leases, o.invoke.At, func(l lease, at int64) int { return cmp.Compare(l.event.At, at) })
		if n > 0 && top[n-1].Token > o.invoke.Token {
			out = append(out, Violation{RuleFencing, k.key, fmt.Sprintf("token %d settled the key after %d was handed out", o.invoke.Token, top[n-1].Token), []Event{top[n-1], o.invoke, o.end}})
		}
	}
	return out
}

// exclusion: no two workers take the key for their own at a time, except across
// a pause or a failover. It returns how often that excused an overlap.
func exclusion(k *keyHistory, excuses []interval) (out []Violation, excused int) {
	for i, a := range k.leases {
		for _, b := range k.leases[i+1:] {
			if b.event.At >= a.until {
				break // leases are in the order in which they arrived
			}
			if b.until <= b.event.At || b.event.Token == a.event.Token && b.event.Process == a.event.Process {
				continue // it had ended before it arrived; or the worker was notified twice
			}
			from, to := min(a.granted, b.granted, a.event.At), min(a.until, b.until)
			if slices.ContainsFunc(excuses, func(x interval) bool { return x.from <= to && x.to >= from }) {
				excused++
				continue
			}
			out = append(out, Violation{RuleExclusion, k.key, fmt.Sprintf("tokens %d and %d are both held", a.event.Token, b.event.Token), []Event{a.event, b.event}})
		}
	}
	return out, excused
}

// tokens: no two leases have the same token, and of two leases the one granted later has the
// greater.
func tokens(k *keyHistory, slack int64) (out []Violation) {
	leases := slices.Clone(k.leases)
	slices.SortStableFunc(leases, func(a, b lease) int { return cmp.Compare(a.granted, b.granted) })
	var top lease // greatest token so far
	for _, l := range leases {
		t := l.event
		switch {
		case top.event.Token == t.Token && top.event.Token != 0 && top.event.Process != t.Process:
			out = append(out, Violation{RuleTokens, k.key, fmt.Sprintf("token %d was handed out twice", t.Token), []Event{top.event, t}})
		case t.Token < top.event.Token && l.granted > top.granted+slack:
			out = append(out, Violation{RuleTokens, k.key, fmt.Sprintf("token %d was granted after %d", t.Token, top.event.Token), []Event{top.event, t}})
		}
		if t.Token > top.event.Token {
			top = l
		}
	}
	return out
}

// addsLead: after each acknowledged add was invoked a lease is granted.
func addsLead(k *keyHistory, slack int64) (out []Violation) {
	var last int64
	for _, l := range k.leases {
		last = max(last, l.granted)
	}
	for _, o := range k.adds {
		if o.acknowledged() && last+slack < o.invoke.At {
			out = append(out, Violation{RuleAdd, k.key, "no lease was granted after an add that was acknowledged", []Event{o.invoke, o.end}})
		}
	}
	return out
}

// early: no lease arrives before the due time of every add that may have
// happened, nor before that of the settlement that made the key wait.
func early(k *keyHistory, slack int64) (out []Violation) {
	due, why := int64(never), Event{}
	for _, o := range k.adds {
		if at := o.invoke.At + o.invoke.Delay; o.possible() && at < due {
			due, why = at, o.invoke
		}
	}
	for _, l := range k.leases {
		if due != never && l.event.At+slack < due {
			out = append(out, Violation{RuleEarly, k.key, fmt.Sprintf("token %d came %d us early", l.event.Token, (due-l.event.At)/1000), []Event{why, l.event}})
		}
	}
	since := callsSince(k)
	for _, o := range k.settles {
		// One call is the settlement itself.
		if !o.accepted() || o.invoke.Delay == 0 || o.end.Status != StatusSettled || since(o.invoke.Token) != 1 {
			continue
		}
		due := o.invoke.At + o.invoke.Delay
		for _, l := range k.leases {
			if l.event.Token > o.invoke.Token && l.event.At+slack < due {
				out = append(out, Violation{RuleEarly, k.key, fmt.Sprintf("token %d came %d us before the delay of a settlement was over", l.event.Token, (due-l.event.At)/1000), []Event{o.invoke, l.event}})
			}
		}
	}
	return out
}

// callsSince returns how many adds, and settlements that asked for another run,
// may have happened or become due after the lease of a token was granted. A
// delay that is pending stays when its key runs for another reason.
func callsSince(k *keyHistory) func(token uint64) int {
	var calls []int64
	call := func(o operation, wait int64) {
		if !o.possible() {
			return
		}
		at := max(o.done, o.invoke.At+wait)
		if o.done < never {
			at = o.done + wait
		}
		calls = append(calls, at)
	}
	for _, o := range k.adds {
		call(o, max(o.invoke.Delay, o.invoke.Within))
	}
	for _, o := range k.settles {
		if !o.invoke.Ends && (o.accepted() || !o.acknowledged()) {
			call(o, max(o.invoke.Delay, o.invoke.Within))
		}
	}
	slices.Sort(calls)
	granted := make(map[uint64]int64, len(k.leases))
	for _, l := range k.leases {
		granted[l.event.Token] = l.granted
	}
	return func(token uint64) int {
		at, known := granted[token]
		if !known {
			return len(calls) + 2 // its worker was killed before it wrote it down: anything may have happened
		}
		i, _ := slices.BinarySearch(calls, at)
		return len(calls) - i
	}
}

// undone: a key that was done comes again only when it was added again.
func undone(k *keyHistory, slack int64) (out []Violation) {
	since := callsSince(k)
	for _, o := range k.settles {
		if !o.accepted() || !o.invoke.Ends || o.end.Status != StatusSettled || since(o.invoke.Token) > 0 {
			continue
		}
		for _, l := range k.leases {
			if l.event.Token > o.invoke.Token && l.granted > o.end.At+slack {
				out = append(out, Violation{RuleUndone, k.key, fmt.Sprintf("token %d was granted although %d had ended it", l.event.Token, o.invoke.Token), []Event{o.invoke, o.end, l.event}})
			}
		}
	}
	return out
}

// uncalled: a lease follows an add that may have happened.
func uncalled(k *keyHistory, slack int64) (out []Violation) {
	first := int64(never)
	for _, o := range k.adds {
		if o.possible() {
			first = min(first, o.invoke.At)
		}
	}
	for _, l := range k.leases {
		if first > l.event.At && first-l.event.At > slack {
			out = append(out, Violation{RuleUncalled, k.key, fmt.Sprintf("token %d was granted and no add may have happened", l.event.Token), []Event{l.event}})
		}
	}
	return out
}
