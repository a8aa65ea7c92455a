package volume

import "os"

// mounter mounts memory file systems.
type mounter interface {
	// tmpfs mounts one on dir; size 0 leaves the limit to the system, gid -1 the group.
	tmpfs(dir string, size int64, perm os.FileMode, gid int) error
	// unmount undoes it; nil when nothing is mounted on dir.
	unmount(dir string) error
}

type systemMounter struct{}
