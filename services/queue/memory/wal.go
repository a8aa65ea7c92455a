package memory

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// The log of a queue is a file of records: length, CRC-32C, then a kind and
// its body. It begins with a snapshot; turns and configurations follow. A
// record that was torn by a crash ends the file: it was never acknowledged.
const (
	recSnapshot = 's' // JSON of workqueue.Snapshot
	recConfig   = 'c' // JSON of workqueue.Config
	recTurn     = 't' // see codec.go
)

const (
	headLen   = 8
	logSuffix = ".queue"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type wal struct {
	path  string
	f     *os.File
	size  int64
	base  int64 // size after the snapshot
	fsync bool
	buf   []byte
	lost  bool // a sync failed: what the disk holds is not known
}

func (w *wal) append(kind byte, body func([]byte) []byte) error {
	var head [headLen]byte // filled in below
	w.buf = append(w.buf[:0], head[:]...)
	b := body(append(w.buf, kind))
	w.buf = b[:0]
	binary.LittleEndian.PutUint32(b, uint32(len(b)-headLen))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[headLen:], castagnoli))
	if int64(len(b)-headLen) > math.MaxUint32 {
		return fmt.Errorf("a record of %d bytes is too long", len(b))
	}
	if _, err := w.f.Write(b); err != nil {
		return err
	}
	w.size += int64(len(b))
	if !w.fsync {
		return nil
	}
	if err := w.f.Sync(); err != nil {
		w.lost = true
		return err
	}
	return nil
}

// cut takes back what a failed append left of its record.
func (w *wal) cut() error {
	if err := w.f.Truncate(w.size); err != nil {
		return err
	}
	_, err := w.f.Seek(w.size, io.SeekStart)
	return err
}

// begin writes a new log that starts with a snapshot and puts it in place of
// the old one. With an error it returns nil when the old one is still in place.
func begin(path string, snap *workqueue.Snapshot, fsync bool) (*wal, error) {
	blob, err := json.Marshal(snap)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	w := &wal{path: path, f: f, fsync: fsync}
	err = w.append(recSnapshot, func(b []byte) []byte { return append(b, blob...) })
	if err == nil {
		err = f.Sync() // the old log goes only when the new one is safe
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.base, w.buf = w.size, nil
	if fsync { // else a crash may bring the old log back
		err = syncDir(filepath.Dir(path))
		w.lost = err != nil
	}
	return w, err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (q *queue) path() string {
	return filepath.Join(q.e.cfg.Dir, url.PathEscape(q.name)+logSuffix)
}

// create starts the queue's log, if there is a directory.
func (q *queue) create() error {
	if q.e.cfg.Dir == "" {
		return nil
	}
	w, err := begin(q.path(), q.m.Snapshot(), q.e.cfg.Fsync)
	if err != nil {
		if w != nil {
			_ = w.f.Close()
		}
		return fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnavailable, q.name, err)
	}
	q.log = w
	return nil
}

func (q *queue) logConfig(cfg workqueue.Config) error {
	if q.log == nil {
		return nil
	}
	blob, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	return q.failed(q.log.append(recConfig, func(b []byte) []byte { return append(b, blob...) }))
}

func (q *queue) logTurn(now int64, t *workqueue.Turn, r *workqueue.Result) error {
	if q.log == nil || !changes(t, r) {
		return nil
	}
	if len(r.Leases) == 0 {
		t = &workqueue.Turn{Ops: t.Ops, Away: t.Away, Reserved: t.Reserved, Admitted: t.Admitted} // nobody got anything: leave the waiting workers out
	}
	if err := q.failed(q.log.append(recTurn, func(b []byte) []byte { return appendTurn(b, now, t) })); err != nil {
		return err
	}
	if q.log.size-q.log.base > q.e.cfg.CompactBytes {
		return q.compact()
	}
	return nil
}

func (q *queue) compact() error {
	w, err := begin(q.path(), q.m.Snapshot(), q.e.cfg.Fsync)
	if w == nil { // the old log is whole; try again when it has grown by as much again
		q.log.base = q.log.size
		return nil
	}
	old := q.log.f
	q.log = w
	return q.failed(errors.Join(err, old.Close()))
}

// failed remembers a log that could not be written: memory is then ahead of
// it, and nothing may be acknowledged until it has been mended. The turn is
// surely not applied, unless it was written and only its sync failed.
func (q *queue) failed(err error) error {
	if err == nil {
		return nil
	}
	q.broken = fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnavailable, q.name, err)
	if q.log.lost {
		return fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnknown, q.name, err)
	}
	return q.broken
}

// mend makes the queue again what its log says, as when the disk was full and
// has room again. After a failed sync only a restart can tell.
func (q *queue) mend() error {
	if q.broken == nil || q.log == nil || q.log.lost {
		return q.broken
	}
	if q.log.cut() != nil {
		return q.broken
	}
	m, err := replay(q.path())
	if err != nil {
		return q.broken
	}
	q.m, q.broken = m, nil
	return nil
}

func (q *queue) close() error {
	if q.log == nil {
		return nil
	}
	err := errors.Join(q.log.f.Sync(), q.log.f.Close())
	q.log = nil
	q.broken = fmt.Errorf("%w: closed", engine.ErrUnavailable)
	return err
}

// changes says whether a turn did anything that must be remembered.
func changes(t *workqueue.Turn, r *workqueue.Result) bool {
	if len(r.Leases) > 0 || r.Promoted > 0 || r.Expired > 0 {
		return true
	}
	for i := range t.Ops {
		if k := t.Ops[i].Kind; k != workqueue.OpRequeues && k != workqueue.OpInspect && k != workqueue.OpBackoffGet {
			return true
		}
	}
	return false
}

// restore reads every log of the directory and starts each anew with a
// snapshot.
func (e *Engine) restore() error {
	entries, err := os.ReadDir(e.cfg.Dir)
	if err != nil {
		return err
	}
	for _, ent := range entries {
		escaped, ok := strings.CutSuffix(ent.Name(), logSuffix)
		if !ok {
			continue
		}
		name, err := url.PathUnescape(escaped)
		if err != nil {
			return fmt.Errorf("%s: %w", ent.Name(), err)
		}
		m, err := replay(filepath.Join(e.cfg.Dir, ent.Name()))
		if err != nil {
			return fmt.Errorf("%s: %w", ent.Name(), err)
		}
		m.EndLeases(e.cfg.Now().UnixMicro() + graceAfterStart)
		q := &queue{e: e, name: name, m: m}
		if err := q.create(); err != nil {
			return err
		}
		e.queues[name] = q
	}
	return nil
}

// graceAfterStart is how long workers have to reconnect before the leases they
// held when the process ended go to others, in microseconds.
const graceAfterStart = 2e6

// replay rebuilds a queue from its log.
func replay(path string) (*workqueue.Machine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	in := &io.LimitedReader{R: bufio.NewReaderSize(f, 1<<20), N: info.Size()}
	var m *workqueue.Machine
	for {
		kind, body, err := readRecord(in)
		if errors.Is(err, errTorn) || errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch {
		case kind == recSnapshot:
			var s workqueue.Snapshot
			if err := json.Unmarshal(body, &s); err != nil {
				return nil, fmt.Errorf("snapshot: %w", err)
			}
			m = workqueue.Restore(&s)
		case m == nil:
			return nil, errNoSnapshot
		case kind == recConfig:
			var c workqueue.Config
			if err := json.Unmarshal(body, &c); err != nil {
				return nil, fmt.Errorf("configuration: %w", err)
			}
			m.Configure(c)
		case kind == recTurn:
			now, t, err := decodeTurn(body)
			if err != nil {
				return nil, err
			}
			m.Turn(now, t)
		default:
			return nil, fmt.Errorf("record of unknown kind %q", kind)
		}
	}
	if m == nil {
		return nil, errNoSnapshot
	}
	return m, nil
}

var (
	errTorn       = errors.New("torn record")
	errNoSnapshot = fmt.Errorf("no snapshot at the start of the log: %w", fs.ErrInvalid)
)

func readRecord(in *io.LimitedReader) (byte, []byte, error) {
	var head [headLen]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, nil, errTorn
		}
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || int64(n) > in.N {
		return 0, nil, errTorn
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(in, body); err != nil {
		return 0, nil, errTorn
	}
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return 0, nil, errTorn
	}
	return body[0], body[1:], nil
}
