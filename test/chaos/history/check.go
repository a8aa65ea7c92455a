package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Violation is a rule that a history breaks.
type Violation struct {
	Rule   string
	Key    string
	What   string
	Events []Event // what shows it, in the order of time
}

func (v Violation) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: key %q: %s", v.Rule, v.Key, v.What)
	for _, e := range v.Events {
		line, _ := json.Marshal(e) // it came from JSON
		fmt.Fprintf(&text, "\n    %s", line)
	}
	return text.String()
}

// The rules.
const (
	RuleOneSettle  = "one settlement for a lease"
	RuleFencing    = "no settlement by a stale token"
	RuleExclusion  = "leases of a key do not overlap"
	RuleTokens     = "tokens grow"
	RuleAdd        = "an acknowledged add leads to a lease"
	RuleEarly      = "nothing runs early"
	RuleUndone     = "what is done stays done"
	RuleUncalled   = "nothing runs that was not added"
	RuleLeft       = "nothing is left"
	RuleWellFormed = "the history is whole"
)

// Summary is what a history holds.
type Summary struct {
	Adds, AddsAcknowledged, AddsFailed, AddsUnknown       int
	Leases, LeasedAgain                                   int
	Settles, SettlesAccepted, SettlesLost, SettlesUnknown int
	Faults                                                map[string]int
	Excused                                               int // overlaps across a pause or failover
	Keys                                                  int
}

// never is the end of an operation that may still happen.
const never = math.MaxInt64

// operation is an invoke and its end.
type operation struct {
	invoke Event
	end    Event // Kind is empty when there is none
	done   int64 // when it had happened at the latest; never when that is unknown
}

func (o operation) acknowledged() bool { return o.end.Kind == OK }
func (o operation) possible() bool     { return o.end.Kind != Fail }
func (o operation) accepted() bool {
	return o.end.Kind == OK && (o.end.Status == StatusSettled || o.end.Status == StatusRequeued)
}

// lease is a lease as its worker saw it.
type lease struct {
	event   Event
	until   int64 // the last moment its worker takes it for its own
	granted int64
}

// keyHistory is what happened to one key.
type keyHistory struct {
	key     string
	adds    []operation
	settles []operation
	leases  []lease
}

// interval is a fault that excuses overlaps.
type interval struct{ from, to int64 }

// Check reads the events of all processes of a run, in any order, and returns
// what it breaks. Slack is how much later than it happened the grant of a lease
// may seem to have been: the resolution of the store's clock.
func Check(events []Event, slack int64) (Summary, []Violation) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	s := Summary{Faults: map[string]int{}}
	keys, excuses, broken := gather(events, &s)
	all := broken
	for _, k := range keys {
		for _, rule := range []func(*keyHistory, int64) []Violation{oneSettle, fencing, tokens, addsLead, early, undone, uncalled} {
			all = append(all, rule(k, slack)...)
		}
		found, excused := exclusion(k, excuses)
		all = append(all, found...)
		s.Excused += excused
	}
	return s, all
}

// gather sorts events by key and pairs operations with their ends.
func gather(events []Event, s *Summary) ([]*keyHistory, []interval, []Violation) {
	type name struct {
		process string
		id      int64
	}
	type held struct {
		process, key string
		token        uint64
	}
	byKey := map[string]*keyHistory{}
	of := func(key string) *keyHistory {
		if byKey[key] == nil {
			byKey[key] = &keyHistory{key: key}
		}
		return byKey[key]
	}
	ends := map[name]Event{}
	killed := map[string][]int64{}
	faults := map[name]int{}
	var excuses []interval
	var broken []Violation
	var order []*lease
	current := map[held]*lease{}
	for _, e := range events {
		switch e.Kind {
		case OK, Fail, Unknown:
			if _, twice := ends[name{e.Process, e.ID}]; twice {
				broken = append(broken, Violation{RuleWellFormed, e.Key, "an operation ends twice", []Event{e}})
			}
			ends[name{e.Process, e.ID}] = e
		case Leased:
			l := &lease{event: e, until: e.Until, granted: cmp.Or(e.Granted, e.At)}
			order = append(order, l)
			current[held{e.Process, e.Key, e.Token}] = l
		case Held:
			if l := current[held{e.Process, e.Key, e.Token}]; l != nil {
				l.until = e.Until
			}
		case Dropped:
			if l := current[held{e.Process, e.Key, e.Token}]; l != nil {
				l.until = min(l.until, e.At)
			}
		case Fault:
			s.Faults[e.Name]++
			switch e.Name {
			case Pause, Failover:
				faults[name{e.Process, e.ID}] = len(excuses)
				excuses = append(excuses, interval{e.At, never})
			case Kill:
				killed[e.Whom] = append(killed[e.Whom], e.At)
			}
		case Healed:
			if i, ok := faults[name{e.Process, e.ID}]; ok {
				excuses[i].to = e.At
			}
		case Left:
			if e.Count != 0 {
				broken = append(broken, Violation{RuleLeft, e.Key, fmt.Sprintf("%d keys", e.Count), []Event{e}})
			}
		}
	}
	for _, e := range events {
		if e.Kind != Invoke {
			continue
		}
		o := operation{invoke: e, end: ends[name{e.Process, e.ID}], done: never}
		if o.end.Kind == Fail || o.end.Kind == OK && o.end.Sent <= 1 {
			o.done = o.end.At
		}
		k := of(e.Key)
		if e.Op == Add {
			k.adds = append(k.adds, o)
			s.count(o, &s.Adds, &s.AddsAcknowledged, &s.AddsUnknown)
			if o.end.Kind == Fail {
				s.AddsFailed++
			}
			continue
		}
		k.settles = append(k.settles, o)
		if l := current[held{e.Process, e.Key, e.Token}]; l != nil {
			l.until = min(l.until, e.At) // who settles has finished
		}
		s.count(o, &s.Settles, nil, &s.SettlesUnknown)
		switch {
		case o.accepted():
			s.SettlesAccepted++
		case o.acknowledged():
			s.SettlesLost++
		}
	}
	for _, l := range order {
		for _, at := range killed[l.event.Process] {
			if at > l.event.At {
				l.until = min(l.until, at)
			}
		}
		k := of(l.event.Key)
		if len(k.leases) > 0 {
			s.LeasedAgain++
		}
		k.leases = append(k.leases, *l)
		s.Leases++
	}
	out := make([]*keyHistory, 0, len(byKey))
	for _, k := range byKey {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b *keyHistory) int { return cmp.Compare(a.key, b.key) })
	s.Keys = len(out)
	return out, excuses, broken
}

func (s *Summary) count(o operation, all, acknowledged, unknown *int) {
	*all++
	switch {
	case o.acknowledged():
		if acknowledged != nil {
			*acknowledged++
		}
	case o.possible():
		*unknown++
	}
}
