package devcluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/deltaplane/deltaplane/internal/dirlock"
)

// walName is the log's file in Config.DataDir.
const walName = "objects.wal"

// entry is one line of the log. Applying all lines in order gives the state; the
// first line of a compacted log carries only the resource version reached, and a
// line with a table alone that of the table's newest change.
type entry struct {
	RV     uint64          `json:"rv"`
	Table  string          `json:"table,omitempty"`
	Key    string          `json:"key,omitempty"`
	Delete bool            `json:"delete,omitempty"`
	Object json.RawMessage `json:"object,omitempty"`
}

// wal appends changes to a file, one JSON line each, in one write per change, so
// that whatever was acknowledged survives the death of the process (not of the
// machine: nothing is synced). A nil wal keeps nothing.
type wal struct {
	file *os.File
	lock *os.File
	buf  []byte
}

// write appends one change. The caller holds the store's lock.
func (w *wal) write(table string, o *object, del bool) error {
	if w == nil {
		return nil
	}
	b := fmt.Appendf(w.buf[:0], `{"rv":%d,"table":%q,"key":%q`, o.rv, table, o.key)
	if del {
		b = append(b, `,"delete":true`...)
	} else {
		b = append(append(b, `,"object":`...), o.raw...)
	}
	b = append(b, '}', '\n')
	if cap(b) <= 1<<20 {
		w.buf = b
	}
	n, err := w.file.Write(b)
	if err != nil && n > 0 {
		// A torn line would end every later replay, so take it back.
		if at, serr := w.file.Seek(0, io.SeekCurrent); serr == nil {
			err = errors.Join(err, w.file.Truncate(at-int64(n)))
			_, serr = w.file.Seek(at-int64(n), io.SeekStart)
			err = errors.Join(err, serr)
		}
	}
	return err
}

func (w *wal) close() error {
	if w == nil {
		return nil
	}
	return errors.Join(w.file.Close(), w.lock.Close())
}

// readWAL calls apply for every whole line of the log. A torn last line, left by a
// process killed in the middle of a write, was never acknowledged and is ignored;
// damage before the end is an error naming the line.
func readWAL(path string, apply func(entry) error) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return fmt.Errorf("%s line %d: %w", path, n, err)
		}
		if err := apply(e); err != nil {
			return fmt.Errorf("%s line %d: %w", path, n, err)
		}
	}
}

// rewriteWAL replaces the log by one that holds exactly the given state and
// returns it opened for appending. CRDs come first, so that a replay knows every
// resource before its objects.
func rewriteWAL(dir string, s *store) (*wal, error) {
	path := filepath.Join(dir, walName)
	f, err := os.CreateTemp(dir, walName+".*")
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	fmt.Fprintf(out, "{\"rv\":%d}\n", s.rv)
	dump := func(t *table) {
		fmt.Fprintf(out, "{\"rv\":%d,\"table\":%q}\n", t.floor, t.res.id())
		t.live.Ascend(func(o *object) bool {
			fmt.Fprintf(out, `{"rv":%d,"table":%q,"key":%q,"object":`, o.rv, t.res.id(), o.key)
			_, err := out.Write(append(slices.Clip(o.raw), '}', '\n'))
			return err == nil // the error sticks to the buffer, and Flush reports it
		})
	}
	if t := s.tables[crdID]; t != nil {
		dump(t)
	}
	for id, t := range s.tables {
		if id != crdID {
			dump(t)
		}
	}
	if err := errors.Join(out.Flush(), f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &wal{file: file}, nil
}

// replay loads the log in dir into an empty store and opens it for writing.
func (a *api) replay(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := dirlock.Lock(dir)
	if err != nil {
		return err
	}
	if err := a.load(dir); err != nil {
		return errors.Join(err, lock.Close())
	}
	a.store.wal.lock = lock
	return nil
}

// load applies the log in dir, compacts it, and leaves it open in the store.
func (a *api) load(dir string) error {
	s := a.store
	var compacted uint64          // what the log was compacted at
	told := map[string]bool{}     // tables whose newest change before that is known
	newest := map[string]uint64{} // and the newest afterwards
	err := readWAL(filepath.Join(dir, walName), func(e entry) error {
		s.rv = max(s.rv, e.RV)
		if e.Table == "" {
			compacted = e.RV
			return nil
		}
		r := a.registry.get(e.Table)
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
		old, _ := t.live.Get(&object{key: e.Key})
		if old != nil {
			s.index(t, old, false)
		}
		if e.Delete {
			t.live.Delete(&object{key: e.Key})
			if old != nil && r.id() == crdID {
				a.unserve(old.obj)
			}
			return nil
		}
		obj, err := decodeStored(r, e.Object)
		if err != nil {
			return err
		}
		o := &object{key: e.Key, rv: e.RV, obj: obj, raw: e.Object}
		t.live.ReplaceOrInsert(o)
		s.index(t, o, true)
		if r.id() == crdID {
			return a.serveCRD(obj)
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
