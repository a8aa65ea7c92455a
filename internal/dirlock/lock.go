// Package dirlock keeps a data directory to one process.
package dirlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrTaken says that another process holds the directory.
var ErrTaken = errors.New("directory is used by another process")

// Lock takes an existing directory by its file "lock". Closing the file, or the end of the process
// however it comes, gives it back. Where the system has no flock nothing keeps a second process
// out. Errors: ErrTaken.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := take(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), f.Close())
	}
	return f, nil
}
