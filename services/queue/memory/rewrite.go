package memory

import (
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// step is how many keys a record of a snapshot has.
const step = 512

var errClosing = errors.New("the queue is being closed")

// create begins the queue's log with a snapshot. Nobody uses the queue yet.
func (q *queue) create() error {
	log, err := journal.Create(q.path(), q.e.journal(), q.snapshot)
	if err != nil {
		return q.unavailable(err)
	}
	q.log = log
	return nil
}

// rewrite replaces the log by a shorter one while transactions go on. When it fails the
// old log goes on, and the next try waits until it has grown by as much again.
func (q *queue) rewrite() {
	defer q.rewriting.Store(false)
	if err := q.log.Rewrite(q.snapshot); err != nil && !errors.Is(err, errClosing) {
		q.e.cfg.Log.Warn("queue log not rewritten", slog.String(telemetry.KeyQueue, q.name), telemetry.Err(err))
	}
}

// snapshot writes one partition after the other. Each is copied to memory with
// its lock held, which is for how long its transactions wait; what the log got
// meanwhile from those before it is kept in between.
func (q *queue) snapshot(w *journal.Writer) error {
	var records []byte
	for i, p := range q.parts {
		if q.closing.Load() {
			return errClosing
		}
		var err error
		var place int64 // what the partition logged before is in its snapshot
		p.mu.Lock()
		records, err = p.save(records[:0])
		if q.log != nil {
			place = q.log.End()
		}
		p.mu.Unlock()
		if i == 0 {
			w.Drop(place)
		}
		if err = errors.Join(err, w.Keep(place), w.Write(records)); err != nil {
			return err
		}
	}
	return w.Append(record(recWhole, func(b []byte) []byte { return b }))
}

// save appends the records of the partition's snapshot. It needs mu.
func (p *partition) save(b []byte) ([]byte, error) {
	blob, err := json.Marshal(namedHead{p.q.name, p.m.Head()})
	add := func(kind byte, body func([]byte) []byte) {
		if err == nil {
			b, err = format.Append(b, record(kind, body))
		}
	}
	add(recHead, func(b []byte) []byte { return append(append(b, byte(p.number)), blob...) })
	items := make([]workqueue.SavedItem, 0, step)
	flush := func() {
		if len(items) > 0 {
			add(recItems, func(b []byte) []byte { return appendItems(b, p.number, items) })
			items = items[:0]
		}
	}
	for it := range p.m.SavedItems() {
		if items = append(items, it); len(items) == step {
			flush()
		}
	}
	flush()
	entries := make([]workqueue.SavedEntry, 0, step)
	flush = func() {
		if len(entries) > 0 {
			add(recEntries, func(b []byte) []byte { return appendEntries(b, p.number, entries) })
			entries = entries[:0]
		}
	}
	for e := range p.m.SavedEntries() {
		if entries = append(entries, e); len(entries) == step {
			flush()
		}
	}
	flush()
	return b, err
}
