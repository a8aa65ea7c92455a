//go:build !unix

package memory

import (
	"os"
	"path/filepath"
)

// lockDir takes nothing where there is no flock: keep other processes away.
func lockDir(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
}
