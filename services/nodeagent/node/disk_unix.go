//go:build unix

package node

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// disk is the file system that holds dir, or will once dir is made.
func disk(dir string) (filesystem, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(dir, &s)
		if errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return filesystem{}, err
		}
		block := int64(s.Bsize) //nolint:unconvert // other systems have another type
		return filesystem{size: int64(s.Blocks) * block, free: int64(s.Bavail) * block, inodes: int64(s.Files), freeInodes: int64(s.Ffree)}, nil
	}
}
