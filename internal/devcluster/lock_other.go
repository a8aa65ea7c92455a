//go:build !unix

package devcluster

import (
	"os"
	"path/filepath"
)

// lockDir opens the lock file; on this system nothing keeps a second process out.
func lockDir(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
}
