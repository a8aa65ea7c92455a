package journal

import (
	"bufio"
	"errors"
	"io"
	"os"
)

// Writer writes the file that is to be a log. After an error it writes nothing
// more, and all its methods return that error.
type Writer struct {
	f    File
	out  *bufio.Writer
	o    Options
	size int64
	buf  []byte
	err  error

	// Of a log that is being rewritten: its file, where that lies among places,
	// and the place up to which records were kept or dropped.
	old    *os.File
	origin int64
	from   int64
}

// Append writes a record whose body is what body appends.
func (w *Writer) Append(body func([]byte) []byte) error {
	b, err := w.o.Format.Append(w.buf[:0], body)
	w.buf = b[:0]
	if w.err == nil {
		w.err = err
	}
	return w.Write(b)
}

// Write writes records that [Format.Append] made.
func (w *Writer) Write(records []byte) error {
	if w.err == nil {
		_, w.err = w.out.Write(records)
		w.size += int64(len(records))
	}
	return w.err
}

// Drop leaves out the records of the log that is being rewritten up to a place.
func (w *Writer) Drop(place int64) { w.from = place }

// Keep copies those from where Drop or Keep ended last up to a place.
func (w *Writer) Keep(place int64) error {
	if w.err == nil && place > w.from {
		_, w.err = io.Copy(w.out, io.NewSectionReader(w.old, w.from-w.origin, place-w.from))
		w.size += place - w.from
		w.from = place
	}
	return w.err
}

// sync brings what was written to disk.
func (w *Writer) sync() error {
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err == nil {
		w.err = w.f.Sync()
	}
	return w.err
}

// aside is the file that is to replace a log.
func aside(path string) string { return path + ".new" }

func begin(path string, o Options) (*Writer, error) {
	f, err := os.OpenFile(aside(path), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	w := &Writer{f: o.wrap(f), o: o}
	w.out = bufio.NewWriterSize(w.f, 1<<18)
	return w, nil
}

// giveUp removes the file, which did not become a log.
func (w *Writer) giveUp(path string, err error) error {
	return errors.Join(err, w.f.Close(), os.Remove(aside(path)))
}

// Create writes a log in place of any there is. It and its name are on disk
// when Create returns. Write has to write a record at least.
func Create(path string, o Options, write func(*Writer) error) (*Log, error) {
	w, err := begin(path, o)
	if err != nil {
		return nil, err
	}
	if err = write(w); err == nil {
		err = w.sync()
	}
	if err == nil {
		err = os.Rename(aside(path), path)
	}
	if err != nil {
		return nil, w.giveUp(path, err)
	}
	if err := o.syncDir(path); err != nil {
		return nil, errors.Join(err, w.f.Close())
	}
	return open(path, o, w.f, w.size), nil
}

// Rewrite replaces the file by one that begins with what write writes, while
// appends go on; one Rewrite runs at a time. Records behind the last place that
// write dropped or kept are kept. Appends wait only for the copying of the last
// of them, and where they were synced, for a fsync. With an error the log goes
// on as it was, and counts as just begun.
func (l *Log) Rewrite(write func(*Writer) error) error {
	err := l.rewrite(write)
	if err != nil {
		l.mu.Lock()
		l.base = l.size
		l.mu.Unlock()
	}
	return err
}

// inOneGo is how many bytes are copied while appends wait.
const inOneGo = 1 << 20

func (l *Log) rewrite(write func(*Writer) error) error {
	old, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer old.Close()
	w, err := begin(l.path, l.o)
	if err != nil {
		return err
	}
	l.mu.Lock()
	w.old, w.origin = old, l.end-l.size
	w.from = w.origin
	l.mu.Unlock()
	if err = write(w); err != nil {
		return w.giveUp(l.path, err)
	}
	base := w.size
	for to := l.End(); to-w.from >= inOneGo && err == nil; to = l.End() {
		err = w.Keep(to)
	}
	if err = w.sync(); err != nil { // most of it, before appends wait
		return w.giveUp(l.path, err)
	}

	l.syncing.Lock()
	defer l.syncing.Unlock()
	for l.busy {
		l.idle.Wait()
	}
	was := l.synced
	l.exclusively(func() (int64, error) {
		var safe int64
		if safe, err = l.replace(w, base, was); err != nil {
			err = w.giveUp(l.path, err)
			return 0, nil // the old file is whole
		}
		if l.syncDir() != nil { // the old file may come back: the next Sync tries it again
			return 0, nil
		}
		return safe, nil
	})
	return err
}

// replace puts the new file, which began with base bytes, in the place of the
// log's, which is on disk up to the place was, and returns up to which place the
// new one is.
func (l *Log) replace(w *Writer, base, was int64) (safe int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	safe = w.from
	if err := w.Keep(l.end); err != nil {
		return 0, err
	}
	if was > safe { // the old file goes only when the new one is as safe
		safe = l.end
		err = w.sync()
	} else {
		err = w.out.Flush()
	}
	if err == nil {
		err = os.Rename(aside(l.path), l.path)
	}
	if err != nil {
		return 0, err
	}
	_ = l.f.Close()
	l.f, l.size, l.base, l.torn, l.moved = w.f, w.size, base, false, true
	return safe, nil
}
