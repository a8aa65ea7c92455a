package workqueue

import (
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/expectations"
)

// Snapshot is a [Machine]'s state, for a log that starts with it.
type Snapshot struct {
	Config    Config       `json:"config"`
	Closed    bool         `json:"closed,omitempty"`
	Paused    bool         `json:"paused,omitempty"`
	LastToken uint64       `json:"last_token,omitempty"`
	Granted   uint64       `json:"granted,omitempty"`
	Seq       uint64       `json:"seq,omitempty"`
	Buckets   []float64    `json:"buckets,omitempty"`
	Throttle  float64      `json:"throttle,omitempty"`
	Last      int64        `json:"last,omitempty"` // when the latest turn was
	Entries   []SavedEntry `json:"entries,omitempty"`
	Items     []SavedItem  `json:"items,omitempty"`
}

// SavedEntry is one back-off id of a [Snapshot].
type SavedEntry struct {
	ID string `json:"id"`
	BackoffEntry
}

// SavedItem is one key of a [Snapshot].
type SavedItem struct {
	Key          string            `json:"key"`
	State        State             `json:"state,omitempty"`
	Level        uint8             `json:"level,omitempty"`
	Again        uint8             `json:"again,omitempty"`
	DueLevel     uint8             `json:"due_level,omitempty"`
	DueLimited   bool              `json:"due_limited,omitempty"`
	Attempt      uint16            `json:"attempt,omitempty"`
	Failures     uint32            `json:"failures,omitempty"`
	Seq          uint64            `json:"seq,omitempty"` // Ready: its place in line
	Token        uint64            `json:"token,omitempty"`
	Holder       string            `json:"holder,omitempty"`
	Deadline     int64             `json:"deadline,omitempty"`
	AddedAt      int64             `json:"added_at,omitempty"`
	ReadyAt      int64             `json:"ready_at,omitempty"`
	DirtyAt      int64             `json:"dirty_at,omitempty"`
	Due          int64             `json:"due,omitempty"`
	DueOnce      uint64            `json:"due_once,omitempty"`
	Barrier      Barrier           `json:"barrier,omitempty"`
	BarrierUntil int64             `json:"barrier_until,omitempty"`
	Traces       []string          `json:"traces,omitempty"`
	Data         []byte            `json:"data,omitempty"`
	Expect       *expectations.Set `json:"expect,omitempty"`
	Reason       string            `json:"reason,omitempty"`
	Holders      []string          `json:"holders,omitempty"`
}

// saving is a snapshot being taken while the queue goes on: what a turn is
// about to change is kept as it was, the rest is walked in steps.
type saving struct {
	number  uint32 // of the snapshot, never zero
	at, end int    // the items walked so far
	eat     int    // the entries
	eend    int
	items   []SavedItem
	entries []SavedEntry
}

// BeginSnapshot starts a snapshot of the queue as it is now and returns all of
// it but Entries and Items, which [Machine.NextSnapshot] gives in steps while
// turns go on. It ends one that was begun before.
func (m *Machine) BeginSnapshot() *Snapshot {
	m.snapshots = max(m.snapshots+1, 1)
	m.saving = &saving{number: m.snapshots, end: len(m.items.all), eend: len(m.entries.all)}
	return &Snapshot{
		Config: m.cfg, Closed: m.closed, Paused: m.paused, LastToken: m.lastToken, Granted: m.granted, Seq: m.seq,
		Buckets: slices.Clone(m.tats), Throttle: m.throttle.TAT, Last: m.last,
	}
}

// NextSnapshot is the next part of the snapshot: what changed since the last
// step, and up to n more keys or ids. Done is true with the last part. When
// none was begun there is nothing.
func (m *Machine) NextSnapshot(n int) (items []SavedItem, entries []SavedEntry, done bool) {
	s := m.saving
	if s == nil {
		return nil, nil, true
	}
	for end := min(s.at+n, s.end, len(m.items.all)); s.at < end; s.at++ {
		if it := m.items.all[s.at]; it != nil {
			m.keep(it)
		}
	}
	if done = s.at >= min(s.end, len(m.items.all)); done {
		for end := min(s.eat+n, s.eend, len(m.entries.all)); s.eat < end; s.eat++ {
			if e := m.entries.all[s.eat]; e != nil {
				m.keepEntry(e)
			}
		}
		done = s.eat >= min(s.eend, len(m.entries.all))
	}
	items, entries = s.items, s.entries
	s.items, s.entries = nil, nil
	if done {
		m.saving = nil
	}
	return items, entries, done
}

// EndSnapshot gives up the snapshot that was begun.
func (m *Machine) EndSnapshot() { m.saving = nil }

// keep puts an item into the snapshot being taken as it is, before it changes.
func (m *Machine) keep(it *item) {
	if s := m.saving; s != nil && it.saved != s.number {
		it.saved = s.number
		s.items = append(s.items, it.save())
	}
}

func (m *Machine) keepEntry(e *entry) {
	if s := m.saving; s != nil && e.saved != s.number {
		e.saved = s.number
		s.entries = append(s.entries, SavedEntry{e.id, e.Entry})
	}
}

func (it *item) save() SavedItem {
	v := SavedItem{Key: it.key, State: it.state, Failures: it.failures}
	switch it.state {
	case Ready:
		v.Seq = it.seq
		v.Level, v.Attempt, v.AddedAt, v.ReadyAt = it.level, it.attempt, it.addedAt, it.readyAt
	case Processing, Dirty:
		v.Level, v.Attempt, v.AddedAt, v.ReadyAt = it.level, it.attempt, it.addedAt, it.readyAt
		v.Token, v.Holder, v.Deadline = it.token, it.holder, it.deadline
		if it.state == Dirty {
			v.Again, v.DirtyAt = it.again, it.dirtyAt
		}
	}
	if it.due != 0 {
		v.Due, v.DueLevel, v.DueLimited = it.due, it.dueLvl, it.limited
	}
	if a := it.aux; a != nil {
		v.Barrier, v.BarrierUntil, v.Traces, v.Data, v.Reason, v.DueOnce = a.barrier, a.barrierUntil, a.traces, a.data, a.reason, a.once
		v.Holders = a.holders
		if a.expect.Owner != "" || !a.expect.Satisfied() {
			v.Expect = new(a.expect)
		}
	}
	return v
}

// Snapshot copies the queue, sorted by key and id.
func (m *Machine) Snapshot() *Snapshot {
	s := m.BeginSnapshot()
	s.Items, s.Entries, _ = m.NextSnapshot(len(m.items.all) + len(m.entries.all))
	m.EndSnapshot()
	slices.SortFunc(s.Items, func(a, b SavedItem) int { return strings.Compare(a.Key, b.Key) })
	slices.SortFunc(s.Entries, func(a, b SavedEntry) int { return strings.Compare(a.ID, b.ID) })
	return s
}
