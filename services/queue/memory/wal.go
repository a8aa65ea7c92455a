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
	maxRecord = 1 << 30
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
}

func (w *wal) append(kind byte, body func([]byte) []byte) error {
	var head [headLen]byte // filled in below
	w.buf = append(w.buf[:0], head[:]...)
	b := body(append(w.buf, kind))
	w.buf = b[:0]
	binary.LittleEndian.PutUint32(b, uint32(len(b)-headLen))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[headLen:], castagnoli))
	if _, err := w.f.Write(b); err != nil {
		return err
	}
	w.size += int64(len(b))
	if w.fsync {
		return w.f.Sync()
	}
	return nil
}

// begin writes a new log that starts with a snapshot and puts it in place of
// the old one.
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
	return w, nil
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
		t = &workqueue.Turn{Ops: t.Ops} // nobody got anything: leave the waiting workers out
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
	if err != nil {
		return nil // the old log is whole and goes on growing; the next turn tries again
	}
	old := q.log.f
	q.log = w
	return q.failed(old.Close())
}

// failed remembers a log that could not be written: memory is then ahead of
// it, and nothing may be acknowledged any more.
func (q *queue) failed(err error) error {
	if err != nil {
		q.broken = fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnavailable, q.name, err)
	}
	return q.broken
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
		if k := t.Ops[i].Kind; k != workqueue.OpRequeues && k != workqueue.OpInspect {
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
	in := bufio.NewReaderSize(f, 1<<20)
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

func readRecord(in io.Reader) (byte, []byte, error) {
	var head [headLen]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, nil, errTorn
		}
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxRecord {
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
