package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func (systemMounter) tmpfs(dir string, size int64, perm os.FileMode, gid int) error {
	mode := uint32(perm.Perm())
	if perm&os.ModeSetgid != 0 {
		mode |= unix.S_ISGID
	}
	options := fmt.Sprintf("mode=%04o", mode)
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	if gid >= 0 {
		options += fmt.Sprintf(",gid=%d", gid)
	}
	return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

// unmount finds out by asking: only a mount point can be unmounted.
func (systemMounter) unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil // not a mount point
	case errors.Is(err, unix.EPERM):
		return nil // who may not unmount did not mount
	}
	return err
}
