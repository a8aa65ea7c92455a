package volume

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// bind holds on to what it found by a descriptor, so that nobody can exchange it before
// it is mounted. The kernel keeps the search below volume.
func (systemMounter) bind(volume, sub, target string) error {
	dir, err := unix.Open(volume, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	found, err := unix.Openat2(dir, sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(found)
	var info unix.Stat_t
	if err := unix.Fstat(found, &info); err != nil {
		return err
	}
	if info.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.MkdirAll(target, 0o750)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.Mount("/proc/self/fd/"+strconv.Itoa(found), target, "", unix.MS_BIND|unix.MS_REC, "")
}

func (systemMounter) unmount(point string) error {
	err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	return err
}

// unescape undoes what the kernel writes for white space and backslashes in a path.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func (systemMounter) under(dir string) ([]string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if point := unescape.Replace(fields[4]); point == dir || strings.HasPrefix(point, dir+"/") {
			out = append(out, point)
		}
	}
	return out, lines.Err()
}
