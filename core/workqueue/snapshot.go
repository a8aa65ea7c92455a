package workqueue

import (
	"iter"
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
	Last      int64        `json:"last,omitempty"` // when the latest transaction was
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

// Head is the queue's state but for its keys and back-off ids, which
// [Machine.SavedItems] and [Machine.SavedEntries] give.
func (m *Machine) Head() *Snapshot {
	return &Snapshot{
		Config: m.cfg, Closed: m.closed, Paused: m.paused, LastToken: m.lastToken, Granted: m.granted, Seq: m.seq,
		Buckets: slices.Clone(m.tats), Throttle: m.throttle.TAT, Last: m.last,
	}
}

// SavedItems is every key, in no particular order. No transaction may come between.
func (m *Machine) SavedItems() iter.Seq[SavedItem] {
	return func(yield func(SavedItem) bool) {
		for _, it := range m.items.all {
			if it != nil && !yield(it.save()) {
				return
			}
		}
	}
}

// SavedEntries is every back-off id, in no particular order. No transaction may come
// between.
func (m *Machine) SavedEntries() iter.Seq[SavedEntry] {
	return func(yield func(SavedEntry) bool) {
		for _, e := range m.entries.all {
			if e != nil && !yield(SavedEntry{e.id, e.Entry}) {
				return
			}
		}
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
	s := m.Head()
	s.Items = slices.SortedFunc(m.SavedItems(), func(a, b SavedItem) int { return strings.Compare(a.Key, b.Key) })
	s.Entries = slices.SortedFunc(m.SavedEntries(), func(a, b SavedEntry) int { return strings.Compare(a.ID, b.ID) })
	return s
}
