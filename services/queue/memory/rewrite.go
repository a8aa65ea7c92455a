package memory

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// step is how many keys a snapshot takes with a partition's lock held.
const step = 512

var errClosing = errors.New("the queue is being closed")

// create starts the queue's log anew with a snapshot of what it holds. Nobody
// uses the queue yet.
func (q *queue) create() error {
	f, size, err := q.snapshot(q.begin())
	if err != nil {
		return q.unavailable(err)
	}
	if err := errors.Join(f.Sync(), os.Rename(f.Name(), q.path()), q.e.syncDir(q.e.cfg.Dir)); err != nil {
		return q.unavailable(errors.Join(err, f.Close(), os.Remove(f.Name())))
	}
	q.log = newWAL(q.path(), f, size)
	return nil
}

// rewrite replaces the log by a shorter one while turns go on: a snapshot is
// taken in steps, what was logged since it began is copied behind it, and only
// the last of that holds turns up. When it fails the old log goes on, and the
// next try waits until it has grown by as much again.
func (q *queue) rewrite() {
	defer q.rewriting.Store(false)
	if err := q.replace(); err != nil {
		q.log.mu.Lock()
		q.log.base = q.log.size
		q.log.mu.Unlock()
		if !errors.Is(err, errClosing) {
			q.e.cfg.Log.Warn("queue log not rewritten", slog.String(telemetry.KeyQueue, q.name), telemetry.Err(err))
		}
	}
}

func (q *queue) replace() error {
	for _, p := range q.parts {
		p.mu.Lock()
	}
	w := q.log
	heads := q.begin()
	w.mu.Lock()
	from := w.size
	w.mu.Unlock()
	for _, p := range q.parts {
		p.mu.Unlock()
	}
	defer q.end()

	f, base, err := q.snapshot(heads)
	if err != nil {
		return err
	}
	size := base
	give := func(err error) error { return errors.Join(err, f.Close(), os.Remove(f.Name())) }
	for {
		w.mu.Lock()
		to := w.size
		w.mu.Unlock()
		if to-from < 1<<20 {
			break
		}
		if err := w.copy(f, from, to); err != nil {
			return give(err)
		}
		size, from = size+to-from, to
	}
	if err := f.Sync(); err != nil { // most of it, before turns are held up
		return give(err)
	}

	w.syncing.Lock()
	defer w.syncing.Unlock()
	for w.busy {
		w.turn.Wait()
	}
	w.exclusively(func() (int64, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if err = w.copy(f, from, w.size); err == nil && q.fsync.Load() {
			err = f.Sync() // the old log goes only when the new one is as safe
		}
		if err == nil {
			err = os.Rename(f.Name(), w.path)
		}
		if err != nil {
			err = give(err)
			return 0, nil // the old log is whole
		}
		_ = w.f.Close()
		w.size, w.base, w.f, w.torn = size+w.size-from, base, f, false
		unsynced := q.e.syncDir(filepath.Dir(w.path)) // else a crash of the machine may bring the old log back
		if unsynced != nil && !q.fsync.Load() {
			q.e.cfg.Log.Warn("directory of the queue log not synced", slog.String(telemetry.KeyQueue, q.name), telemetry.Err(unsynced))
			return w.pos, nil
		}
		return w.pos, unsynced
	})
	return err
}

// copy copies records of the log behind those of f.
func (w *wal) copy(f *os.File, from, to int64) error {
	old, err := os.Open(w.path)
	if err != nil {
		return err
	}
	defer old.Close()
	_, err = io.Copy(f, io.NewSectionReader(old, from, to-from))
	return err
}

// begin begins a snapshot of every partition. It needs their locks.
func (q *queue) begin() []*workqueue.Snapshot {
	heads := make([]*workqueue.Snapshot, len(q.parts))
	for i, p := range q.parts {
		heads[i] = p.m.BeginSnapshot()
	}
	return heads
}

func (q *queue) end() {
	for _, p := range q.parts {
		p.mu.Lock()
		p.m.EndSnapshot()
		p.mu.Unlock()
	}
}

// snapshot writes a new file with the snapshots that were begun, and its size.
func (q *queue) snapshot(heads []*workqueue.Snapshot) (*os.File, int64, error) {
	f, err := os.OpenFile(q.path()+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	out := &records{w: bufio.NewWriterSize(f, 1<<18)}
	for i, head := range heads {
		blob, err := json.Marshal(namedHead{q.name, head})
		out.fail(err)
		out.write(recHead, func(b []byte) []byte { return append(append(b, byte(i)), blob...) })
	}
	for i, p := range q.parts {
		for done := false; !done && out.err == nil; {
			if q.closing.Load() {
				out.fail(errClosing)
			}
			var items []workqueue.SavedItem
			var entries []workqueue.SavedEntry
			p.mu.Lock()
			items, entries, done = p.m.NextSnapshot(step)
			p.mu.Unlock()
			if len(items) > 0 {
				out.write(recItems, func(b []byte) []byte { return appendItems(b, i, items) })
			}
			if len(entries) > 0 {
				out.write(recEntries, func(b []byte) []byte { return appendEntries(b, i, entries) })
			}
		}
	}
	out.write(recWhole, func(b []byte) []byte { return b })
	out.fail(out.w.Flush())
	if out.err != nil {
		return nil, 0, errors.Join(out.err, f.Close(), os.Remove(f.Name()))
	}
	return f, out.size, nil
}

// records writes records until one fails.
type records struct {
	w    *bufio.Writer
	buf  []byte
	size int64
	err  error
}

func (r *records) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *records) write(kind byte, body func([]byte) []byte) {
	if r.err != nil {
		return
	}
	var err error
	r.buf, err = appendRecord(r.buf[:0], kind, body)
	r.fail(err)
	_, err = r.w.Write(r.buf)
	r.fail(err)
	r.size += int64(len(r.buf))
}
