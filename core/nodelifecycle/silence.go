package nodelifecycle

import (
	"strings"
	"time"
)

// Fresh says how current the collections of nodes and leases are, on their own
// clock (that of the log).
type Fresh struct {
	// Known is until when both are known completely.
	Known time.Time
	// Heard is when either was last heard of; not before Known.
	Heard time.Time
}

// Memory is what is remembered of a node between looks. Its zero value is that of
// a node never looked at.
type Memory struct {
	UID string `json:"uid,omitempty"`
	// Lease and Status are the last heartbeats seen: the lease's renewal and the
	// Ready condition's, as texts.
	Lease  string `json:"lease,omitempty"`
	Status string `json:"status,omitempty"`
	// Since is when the silence began, Known how far the collections were known at
	// the last look.
	Since time.Time `json:"since"`
	Known time.Time `json:"known"`
	// Held says that every zone was down at the last look.
	Held bool `json:"held,omitempty"`
}

// Silence is how long nothing was heard of a node.
type Silence struct {
	For time.Duration
	// Since is when it began, on the clock of the collections.
	Since time.Time
	// Left is what is left of the grace; zero or less when it is over.
	Left time.Duration
}

// Over reports that the node has been silent for longer than it may be.
func (s Silence) Over() bool { return s.Left <= 0 }

// String is the silence for people: its beginning and the grace, which do not
// change before the next heartbeat. [ParseSilence] reads it.
func (s Silence) String() string {
	return silentSince + s.Since.UTC().Format(time.RFC3339Nano) + graceOf + (s.For + s.Left).String()
}

const (
	silentSince = "silent since "
	graceOf     = ", grace "
)

// ParseSilence reads what [Silence.String] wrote; the collections are known until
// the time given. It is false for any other text.
func ParseSilence(text string, known time.Time) (Silence, bool) {
	text, said := strings.CutPrefix(text, silentSince)
	at, grace, both := strings.Cut(text, graceOf)
	since, err := time.Parse(time.RFC3339Nano, at)
	left, errGrace := time.ParseDuration(grace)
	if !said || !both || err != nil || errGrace != nil {
		return Silence{}, false
	}
	s := Silence{Since: since, For: max(known.Sub(since), 0)}
	s.Left = left - s.For
	return s, true
}

// Heartbeat reports whether a node or its lease say anything that m has not
// seen. Values are compared, never ordered: clocks of nodes may jump.
func (m Memory) Heartbeat(n *Node, lease *Lease) bool {
	return lease != nil && lease.Spec.RenewTime != "" && lease.Spec.RenewTime != m.Lease ||
		n.heartbeat() != "" && n.heartbeat() != m.Status
}

func (n *Node) heartbeat() string { return n.Condition(Ready).LastHeartbeatTime }

// Look returns what is to be remembered after looking at a node, and how long it
// has been silent. Lease is nil when there is none. Held is that every zone is
// down: silence counts all the same.
//
// The silence begins again when a heartbeat is seen, when the node is another one
// of its name, when not every zone is down any more, and when the collections were
// not followed for longer than the gap: then a heartbeat may have been missed. A
// node that never posted its status is silent since its creation.
func (r Rules) Look(m Memory, n *Node, lease *Lease, f Fresh, held bool) (Memory, Silence) {
	r = r.WithDefaults()
	next := Memory{UID: n.Metadata.UID, Lease: m.Lease, Status: m.Status, Since: m.Since, Known: m.Known, Held: held}
	grace := r.Grace
	never := n.Condition(Ready).Status == ""
	if never {
		grace = r.StartupGrace
	}
	first := m.UID != n.Metadata.UID || m.Since.IsZero()
	switch {
	case first:
		next = Memory{UID: n.Metadata.UID, Since: f.Heard, Held: held}
		// A lease that is there was renewed once, by whom and when is not known.
		if created := n.Metadata.CreationTimestamp; never && (lease == nil || lease.Spec.RenewTime == "") && created.Before(f.Known.Add(grace)) {
			next.Since = created
		}
	case m.Heartbeat(n, lease):
		next.Since = f.Heard
	case m.Held && !held, f.Known.Sub(m.Known) > r.Gap:
		next.Since = f.Known
	}
	if lease != nil {
		next.Lease = lease.Spec.RenewTime
	}
	if beat := n.heartbeat(); beat != "" {
		next.Status = beat
	}
	if f.Known.After(m.Known) || first {
		next.Known = f.Known
	}
	silent := max(next.Known.Sub(next.Since), 0)
	return next, Silence{For: silent, Since: next.Since, Left: grace - silent}
}
