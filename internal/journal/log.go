package journal

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
)

// File is what a log does with its file; an *os.File is one.
type File interface {
	io.WriteSeeker
	io.Closer
	Truncate(size int64) error
	Sync() error
}

// Options say how a log is written.
type Options struct {
	Format Format
	// Wrap and SyncDir, for tests, stand between the log and the disk. A file
	// that replaces another is wrapped again.
	Wrap    func(File) File
	SyncDir func(dir string) error
}

func (o Options) wrap(f *os.File) File {
	if o.Wrap == nil {
		return f
	}
	return o.Wrap(f)
}

// Log is an open file of records. It is safe for concurrent use.
type Log struct {
	path string
	o    Options

	mu     sync.Mutex
	f      File  // guarded by mu, as is all that follows
	size   int64 // of the file, whole records only
	base   int64 // of what it began with
	end    int64 // a place: bytes ever appended, in whatever file
	torn   bool  // a failed append may have left part of its record
	failed bool  // the last append did
	moved  bool  // the directory need not know yet which file is this one
	buf    []byte

	syncing sync.Mutex // of what follows; taken before mu
	idle    *sync.Cond
	busy    bool // the file is being synced or replaced
	synced  int64

	lost atomic.Pointer[error] // why nothing may be written any more
}

// open is a log that begins with size bytes, which are on disk.
func open(path string, o Options, f File, size int64) *Log {
	l := &Log{path: path, o: o, f: f, size: size, base: size, end: size, synced: size}
	l.idle = sync.NewCond(&l.syncing)
	return l
}

// closed is why nothing more may be written, nil while it may.
func (l *Log) closed() error {
	if err := l.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Append writes a record whose body is what body appends, and returns the place
// behind it. It then survives the end of the process, and with [Log.Sync] the
// end of the machine. With an error nothing was written that a reader would
// take for a record, and the next Append may succeed.
func (l *Log) Append(body func([]byte) []byte) (place int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := cmp.Or(l.closed(), l.cut()); err != nil {
		return 0, err
	}
	b, err := l.o.Format.Append(l.buf[:0], body)
	if l.buf = b[:0]; cap(b) > 1<<20 {
		l.buf = nil
	}
	if err != nil {
		return 0, err
	}
	if _, err := l.f.Write(b); err != nil {
		l.torn, l.failed = true, true
		return 0, err
	}
	l.failed = false
	l.size += int64(len(b))
	l.end += int64(len(b))
	return l.end, nil
}

// cut takes back what a failed append left of its record. It needs mu.
func (l *Log) cut() error {
	if !l.torn {
		return nil
	}
	if err := l.f.Truncate(l.size); err != nil {
		return err
	}
	if _, err := l.f.Seek(l.size, io.SeekStart); err != nil {
		return err
	}
	l.torn = false
	return nil
}

// Sync returns when everything before a place is on disk. Callers that wait at
// the same time share the next fsync. After an error nothing more is written:
// only reading the file again tells what it holds.
func (l *Log) Sync(place int64) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	for l.synced < place {
		if err := l.closed(); err != nil {
			return err
		}
		if l.busy {
			l.idle.Wait()
			continue
		}
		l.exclusively(func() (int64, error) {
			l.mu.Lock()
			f, upTo, moved := l.f, l.end, l.moved
			l.mu.Unlock()
			if err := f.Sync(); err != nil || !moved {
				return upTo, err
			}
			return upTo, l.syncDir()
		})
	}
	return nil
}

// exclusively does without the lock what excludes a sync, and notes up to which
// place the file is then on disk. It needs syncing, and not busy.
func (l *Log) exclusively(do func() (int64, error)) {
	l.busy = true
	l.syncing.Unlock()
	upTo, err := do()
	l.syncing.Lock()
	l.busy = false
	if err != nil {
		l.lost.CompareAndSwap(nil, &err)
	} else {
		l.synced = max(l.synced, upTo)
	}
	l.idle.Broadcast()
}

func (l *Log) syncDir() error {
	err := l.o.syncDir(l.path)
	l.mu.Lock()
	l.moved = err != nil
	l.mu.Unlock()
	return err
}

// Check says why the log cannot be written, and mends what can be mended. After
// an append that failed it tries another, which it takes back.
func (l *Log) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := cmp.Or(l.closed(), l.cut()); err != nil || !l.failed {
		return err
	}
	l.torn = true
	_, err := l.f.Write(make([]byte, 4096))
	l.failed = err != nil
	return cmp.Or(err, l.cut())
}

// End is the place behind the last record.
func (l *Log) End() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Grown says whether the file has doubled since it was begun, and grown by a
// number of bytes at least.
func (l *Log) Grown(atLeast int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size-l.base > max(atLeast, l.base)
}

// Close syncs and closes the file; later callers get the error after.
func (l *Log) Close(after error) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	for l.busy {
		l.idle.Wait()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost.CompareAndSwap(nil, &after)
	return errors.Join(l.f.Sync(), l.f.Close())
}

// SyncDir makes the names in a directory survive the end of the machine.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (o Options) syncDir(path string) error {
	if o.SyncDir != nil {
		return o.SyncDir(filepath.Dir(path))
	}
	return SyncDir(filepath.Dir(path))
}
