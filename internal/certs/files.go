package certs

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"time"
)

// Recheck is how long what was read of files is used before they are looked at again.
const Recheck = time.Second

// Files is what some files say, read again when their content changes. A version that cannot be
// read leaves the last good one in use, so that a half-written renewal does no harm. It is safe for
// concurrent use.
type Files[T any] struct {
	paths []string
	load  func() (T, error)

	mu      sync.Mutex // guards what follows
	value   T
	content [sha256.Size]byte // of the version that was looked at last
	checked time.Time
	fault   error
}

// OpenFiles reads files for the first time. Load reads them all.
func OpenFiles[T any](load func() (T, error), paths ...string) (*Files[T], error) {
	f := &Files[T]{load: load, paths: paths}
	content, err := digest(paths...)
	if err != nil {
		return nil, err
	}
	if f.value, err = load(); err != nil {
		return nil, err
	}
	f.content, f.checked = content, time.Now()
	return f, nil
}

// digest is over the content: a change may leave a file's time and size as they were.
func digest(paths ...string) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return sum, fmt.Errorf("certs: %w", err)
		}
		part := sha256.Sum256(data)
		h.Write(part[:])
	}
	h.Sum(sum[:0])
	return sum, nil
}

// Get is what the files said at most [Recheck] ago.
func (f *Files[T]) Get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.checked) < Recheck {
		return f.value
	}
	f.checked = now
	content, err := digest(f.paths...)
	if f.fault = err; err != nil || content == f.content {
		return f.value
	}
	f.content = content
	v, err := f.load()
	if f.fault = err; err == nil {
		f.value = v
	} else {
		f.content = [sha256.Size]byte{} // may have been read while it was written
	}
	return f.value
}

// Check returns why the files, as they were at most [Recheck] ago, are not in use; nil when they
// are.
func (f *Files[T]) Check() error {
	f.Get()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault
}
