package memory

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// The log of a queue is a file of records: a mark, length, CRC-32C, then a
// kind and its body. It begins with a snapshot, from recHead of each partition
// to recWhole; turns and configurations follow. The mark lets a reader find
// the next record behind a damaged one.
const (
	recHead    = 'h' // partition, JSON of head
	recItems   = 'i' // partition, items
	recEntries = 'e' // partition, back-off entries
	recWhole   = 'w' // the snapshot ends
	recConfig  = 'c' // JSON of configured
	recTurn    = 't' // partition, time, turn
)

const (
	mark      = "\xd1Dq2"
	headLen   = len(mark) + 8
	maxRecord = math.MaxInt32
	logSuffix = ".queue"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends a record whose body is what body appends.
func appendRecord(b []byte, kind byte, body func([]byte) []byte) ([]byte, error) {
	start := len(b)
	b = append(b, mark...)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, kind)
	b = body(b)
	rec := b[start:]
	n := len(rec) - headLen
	if n > maxRecord {
		return b[:start], fmt.Errorf("a record of %d bytes is too long", n)
	}
	binary.LittleEndian.PutUint32(rec[len(mark):], uint32(n))
	binary.LittleEndian.PutUint32(rec[len(mark)+4:], crc32.Checksum(rec[headLen:], castagnoli))
	return b, nil
}

// wal is an open log. It is safe for concurrent use.
type wal struct {
	path string

	mu   sync.Mutex
	f    *os.File // guarded by mu, as is all that follows
	size int64    // of the file, whole records only
	base int64    // of the snapshot at its start
	pos  int64    // bytes ever appended, in whatever file
	torn bool     // a failed append may have left part of its record
	full bool     // the last append failed
	buf  []byte

	syncing sync.Mutex // of what follows; taken before mu
	turn    *sync.Cond
	busy    bool // somebody syncs or replaces the file
	synced  int64

	lost atomic.Pointer[error] // a sync failed: what the disk holds is not known
}

func newWAL(path string, f *os.File, size int64) *wal {
	w := &wal{path: path, f: f, size: size, base: size}
	w.turn = sync.NewCond(&w.syncing)
	return w
}

// failed is why nothing more may be written, nil while it may.
func (w *wal) failed() error {
	if err := w.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// append writes a record and returns what sync takes. With an error nothing
// was written that a reader would take for a record.
func (w *wal) append(kind byte, body func([]byte) []byte) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := cmp.Or(w.failed(), w.cut()); err != nil {
		return 0, err
	}
	b, err := appendRecord(w.buf[:0], kind, body)
	if w.buf = b[:0]; cap(b) > 1<<20 {
		w.buf = nil
	}
	if err != nil {
		return 0, err
	}
	if _, err := w.f.Write(b); err != nil {
		w.torn, w.full = true, true
		return 0, err
	}
	w.full = false
	w.size += int64(len(b))
	w.pos += int64(len(b))
	return w.pos, nil
}

// cut takes back what a failed append left of its record. It needs mu.
func (w *wal) cut() error {
	if !w.torn {
		return nil
	}
	if err := w.f.Truncate(w.size); err != nil {
		return err
	}
	if _, err := w.f.Seek(w.size, io.SeekStart); err != nil {
		return err
	}
	w.torn = false
	return nil
}

// sync returns when everything up to pos is on disk. Who waits at the same
// time shares the next fsync. After one failed only a restart can tell.
func (w *wal) sync(pos int64) error {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	for w.synced < pos {
		if err := w.failed(); err != nil {
			return err
		}
		if w.busy {
			w.turn.Wait()
			continue
		}
		w.exclusively(func() (int64, error) {
			w.mu.Lock()
			f, upTo := w.f, w.pos
			w.mu.Unlock()
			return upTo, f.Sync()
		})
	}
	return nil
}

// exclusively does what must not run beside a sync, without the lock, and
// notes up to where the file is then on disk. It needs syncing, and not busy.
func (w *wal) exclusively(do func() (int64, error)) {
	w.busy = true
	w.syncing.Unlock()
	upTo, err := do()
	w.syncing.Lock()
	w.busy = false
	if err != nil {
		w.lost.CompareAndSwap(nil, &err)
	} else {
		w.synced = max(w.synced, upTo)
	}
	w.turn.Broadcast()
}

// check says what is wrong with the log, and mends what can be. After an append
// that failed it tries another, which it takes back.
func (w *wal) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := cmp.Or(w.failed(), w.cut()); err != nil || !w.full {
		return err
	}
	w.torn = true
	_, err := w.f.Write(make([]byte, 4096))
	w.full = err != nil
	return cmp.Or(err, w.cut())
}

// grown says that the log has grown enough since its snapshot to be rewritten.
func (w *wal) grown(atLeast int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size-w.base > max(atLeast, w.base)
}

// close syncs and closes the file; whoever comes later gets the error after.
func (w *wal) close(after error) error {
	w.syncing.Lock()
	defer w.syncing.Unlock()
	for w.busy {
		w.turn.Wait()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost.CompareAndSwap(nil, &after)
	return errors.Join(w.f.Sync(), w.f.Close())
}

func (q *queue) path() string { return filepath.Join(q.e.cfg.Dir, fileName(q.name)+logSuffix) }

// configured is a change of the configuration, in microseconds.
type configured struct {
	At int64 `json:"at"`
	workqueue.Config
}

// logConfig logs a new configuration. It needs the locks of all partitions.
func (q *queue) logConfig(at int64, cfg workqueue.Config) error {
	blob, err := json.Marshal(configured{at, cfg})
	if err != nil {
		return err
	}
	pos, err := q.log.append(recConfig, func(b []byte) []byte { return append(b, blob...) })
	if err != nil {
		return q.unavailable(err)
	}
	if !q.fsync.Load() && cfg.Durability != workqueue.Fsync {
		return nil
	}
	if err := q.log.sync(pos); err != nil {
		return q.unknown(err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
