package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/seal"
)

const (
	suffix  = ".checkpoint"
	partial = ".partial" // being written; after a start, by a process that is dead
	damaged = ".damaged" // kept aside for who wants to know why
)

// Dir is a folder of files, one per collection. It belongs to one process. Its
// methods are safe for concurrent use on different collections.
type Dir struct {
	path string
	lock *os.File
	keys *seal.Keys
}

// Open takes a folder, makes it if need be, and removes what a dead process
// was writing. The error is dirlock.ErrTaken, wrapped, when another process has
// it. With keys the files are encrypted.
func Open(path string, keys *seal.Keys) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	lock, err := dirlock.Lock(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	d := &Dir{path: path, lock: lock, keys: keys}
	if err := d.each(partial, func(name string, _ fs.FileInfo) error { return os.Remove(name) }); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %w", err), d.Close())
	}
	return d, nil
}

// Close gives the folder back.
func (d *Dir) Close() error { return d.lock.Close() }

// Expire removes files, damaged ones too, that were last written longer ago
// than age: no log is resumed so far back. It returns how many.
func (d *Dir) Expire(now time.Time, age time.Duration) (int, error) {
	n := 0
	remove := func(name string, info fs.FileInfo) error {
		if now.Sub(info.ModTime()) <= age {
			return nil
		}
		n++
		return os.Remove(name)
	}
	err := errors.Join(d.each(suffix, remove), d.each(damaged, remove))
	return n, err
}

func (d *Dir) each(end string, visit func(string, fs.FileInfo) error) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !strings.HasSuffix(e.Name(), end) {
			continue
		}
		errs = append(errs, visit(filepath.Join(d.path, e.Name()), info))
	}
	return errors.Join(errs...)
}

// name is the file of a collection.
func (d *Dir) name(collection string) string {
	file := url.PathEscape(collection)
	if len(file) > 180 { // names of files are limited to 255 bytes
		h := fnv.New64a()
		_, _ = h.Write([]byte(collection))
		file = fmt.Sprintf("%s-%016x", file[:160], h.Sum64())
	}
	return filepath.Join(d.path, file+suffix)
}

// Saved tells of a file that was written.
type Saved struct {
	Counts
	Bytes int64
}

// Save writes the file of a collection in place of the one before, no faster
// than rate bytes in a second; zero is as fast as it goes. Whatever happens
// meanwhile, the file of before or the new one is whole and in its place.
func (d *Dir) Save(ctx context.Context, h Header, snap *store.Snapshot, rate int) (saved Saved, err error) {
	name := d.name(h.Collection)
	f, err := os.OpenFile(name+partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return saved, fmt.Errorf("checkpoint: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("checkpoint: %w", err), f.Close(), os.Remove(f.Name()))
		}
	}()
	w := &pacer{ctx: ctx, w: f, rate: rate, began: time.Now()}
	buf := bufio.NewWriterSize(w, 256<<10)
	if saved.Counts, err = Write(buf, h, snap, d.keys); err != nil {
		return saved, err
	}
	if err = errors.Join(buf.Flush(), f.Sync()); err != nil {
		return saved, err
	}
	saved.Bytes = w.written
	if err = f.Close(); err != nil {
		return saved, err
	}
	if err = os.Rename(f.Name(), name); err != nil {
		return saved, err
	}
	return saved, syncDir(d.path)
}

// Load reads the file of a collection. The error is fs.ErrNotExist, wrapped,
// when there is none; a file that is damaged is kept aside, one that is not
// encrypted and must be is removed, and any other that [Read] refuses stays until
// the next Save.
func (d *Dir) Load(collection string, o Options) (image *Image, size int64, err error) {
	name := d.name(collection)
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: %w", err)
	}
	o.Collection, o.Keys = collection, d.keys
	image, err = Read(f, info.Size(), o)
	if errors.Is(err, ErrDamaged) {
		err = errors.Join(err, os.Rename(name, name+damaged))
	}
	if errors.Is(err, ErrPlain) {
		err = errors.Join(err, os.Remove(name))
	}
	return image, info.Size(), err
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// pacer writes no faster than its rate, and not at all once its context ends.
type pacer struct {
	ctx     context.Context //nolint:containedctx // of the one call that makes it
	w       io.Writer
	rate    int
	began   time.Time
	written int64
}

func (p *pacer) Write(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := p.w.Write(b)
	p.written += int64(n)
	if err != nil || p.rate <= 0 {
		return n, err
	}
	ahead := time.Duration(float64(p.written)/float64(p.rate)*float64(time.Second)) - time.Since(p.began)
	if ahead < 5*time.Millisecond {
		return n, nil
	}
	select {
	case <-time.After(ahead):
		return n, nil
	case <-p.ctx.Done():
		return n, p.ctx.Err()
	}
}
