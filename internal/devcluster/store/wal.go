package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/journal"
)

// walName is the log's file in Config.DataDir.
const walName = "objects.wal"

// walFormat names the log of this release. The one before was lines of JSON.
const walFormat journal.Format = "\xd1Dc1"

// entry is one record of the log, in JSON. Applying all in order gives the state; the
// first record of a compacted log carries only the resource version reached, and a
// record with a table alone that of the table's newest change.
type entry struct {
	RV     uint64          `json:"rv"`
	Table  string          `json:"table,omitempty"`
	Key    string          `json:"key,omitempty"`
	Delete bool            `json:"delete,omitempty"`
	Object json.RawMessage `json:"object,omitempty"`
}

// wal appends every change to a file, so that whatever was acknowledged survives the
// death of the process (not of the machine: changes are not synced). A nil wal keeps
// nothing.
type wal struct {
	log  *journal.Log
	lock *os.File
}

// write appends one change. The caller holds the store's lock.
func (w *wal) write(table string, o *Object, del bool) error {
	if w == nil {
		return nil
	}
	_, err := w.log.Append(change(table, o, del))
	return err
}

// change is the record of a change. The object is JSON already.
func change(table string, o *Object, del bool) func([]byte) []byte {
	return func(b []byte) []byte {
		b = fmt.Appendf(b, `{"rv":%d,"table":%q,"key":%q`, o.RV, table, o.Key)
		if del {
			b = append(b, `,"delete":true`...)
		} else {
			b = append(append(b, `,"object":`...), o.Raw...)
		}
		return append(b, '}')
	}
}

func (w *wal) close() error {
	if w == nil {
		return nil
	}
	return errors.Join(w.log.Close(os.ErrClosed), w.lock.Close())
}

// readWAL calls apply for every record of the log. What a kill tore off its end was
// never acknowledged and is ignored; damage before the end is an error naming the place.
func readWAL(path string, apply func(entry) error) error {
	end, err := journal.Read(path, walFormat, func(body []byte) error {
		var e entry
		if err := json.Unmarshal(body, &e); err != nil {
			return err
		}
		return apply(e)
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, journal.ErrFormat):
		return fmt.Errorf("move the file away to begin with an empty cluster: %w", err)
	case err == nil && end.Damaged:
		return fmt.Errorf("%s: %w", path, end.Err())
	}
	return err
}

// rewriteWAL replaces the log by one that holds exactly the given state. CRDs come
// first, so that a replay knows every resource before its objects.
func rewriteWAL(dir string, s *Store) (*wal, error) {
	log, err := journal.Create(filepath.Join(dir, walName), journal.Options{Format: walFormat}, func(w *journal.Writer) error {
		err := w.Append(func(b []byte) []byte { return fmt.Appendf(b, `{"rv":%d}`, s.rv) })
		dump := func(t *Table) {
			err = errors.Join(err, w.Append(func(b []byte) []byte { return fmt.Appendf(b, `{"rv":%d,"table":%q}`, t.floor, t.Resource.ID()) }))
			t.live.Ascend(func(o *Object) bool {
				err = errors.Join(err, w.Append(change(t.Resource.ID(), o, false)))
				return err == nil
			})
		}
		if t := s.tables[kinds.CRDID]; t != nil {
			dump(t)
		}
		for id, t := range s.tables {
			if id != kinds.CRDID {
				dump(t)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &wal{log: log}, nil
}

// Replay loads the log in dir into an empty store and opens it for writing. The CRDs in it are
// served again.
func (s *Store) Replay(served *kinds.Registry, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := dirlock.Lock(dir)
	if err != nil {
		return err
	}
	if err := s.load(served, dir); err != nil {
		return errors.Join(err, lock.Close())
	}
	s.wal.lock = lock
	return nil
}

// load applies the log in dir, compacts it, and leaves it open in the store.
func (s *Store) load(served *kinds.Registry, dir string) error {
	var compacted uint64          // what the log was compacted at
	told := map[string]bool{}     // tables whose newest change before that is known
	newest := map[string]uint64{} // and the newest afterwards
	err := readWAL(filepath.Join(dir, walName), func(e entry) error {
		s.rv = max(s.rv, e.RV)
		if e.Table == "" {
			compacted = e.RV
			return nil
		}
		r := served.Get(e.Table)
		if r == nil {
			if e.Delete {
				return nil // of a resource whose CRD was deleted since
			}
			return fmt.Errorf("unknown resource %q", e.Table)
		}
		t := s.ensureLocked(r)
		if e.Key == "" {
			t.floor, told[e.Table] = e.RV, true
			return nil
		}
		newest[e.Table] = max(newest[e.Table], e.RV)
		old, _ := t.live.Get(&Object{Key: e.Key})
		if old != nil {
			s.index(t, old, false)
		}
		if e.Delete {
			t.live.Delete(&Object{Key: e.Key})
			if old != nil && r.ID() == kinds.CRDID {
				s.Unserve(served, old.Decoded)
			}
			return nil
		}
		obj, err := kinds.DecodeStored(r, e.Object)
		if err != nil {
			return err
		}
		o := &Object{Key: e.Key, RV: e.RV, Decoded: obj, Raw: e.Object}
		t.live.ReplaceOrInsert(o)
		s.index(t, o, true)
		if r.ID() == kinds.CRDID {
			return served.Serve(obj)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// The events do not survive a restart: who has not seen a resource's last one must list again.
	for id, t := range s.tables {
		t.floor = max(t.floor, newest[id])
		if !told[id] {
			t.floor = max(t.floor, compacted)
		}
		t.dropped = t.floor
	}
	s.wal, err = rewriteWAL(dir, s)
	return err
}
