package volume

import "os"

// mounter mounts and unmounts.
type mounter interface {
	// tmpfs mounts a memory file system on dir; size 0 leaves the limit to the system, gid -1 the
	// group.
	tmpfs(dir string, size int64, perm os.FileMode, gid int) error
	// bind shows what sub names in volume on target as well, which it makes; nothing on the
	// way may lead out of volume, no matter who changes it meanwhile.
	bind(volume, sub, target string) error
	// unmount undoes either.
	unmount(point string) error
	// under lists what is mounted in dir and below, outermost first.
	under(dir string) ([]string, error)
}

type systemMounter struct{}
