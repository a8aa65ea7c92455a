package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	dataLink = "..data"
	newLink  = "..data_tmp"
	stamp    = "..2006_01_02_15_04_05."
)

// made reports whether a volume of files was published in dir.
func made(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, dataLink))
	return err == nil
}

// publish makes dir show want and nothing else, all at once; nothing is touched when it does
// already. Files belong to group gid when that is not negative. Mount, when not nil, is called
// before anything is written.
func (m *Manager) publish(dir string, want files, gid int, mount func()) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if mount != nil {
		mount()
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask
		return err
	}
	if shows(dir, want, gid) {
		return nil
	}
	data, err := os.MkdirTemp(dir, m.cfg.Now().UTC().Format(stamp))
	if err != nil {
		return err
	}
	if err := fill(data, want, gid); err != nil {
		return errors.Join(err, os.RemoveAll(data))
	}
	if err := swap(dir, filepath.Base(data)); err != nil {
		return errors.Join(err, os.RemoveAll(data))
	}
	return tidy(dir, filepath.Base(data), want)
}

// fileMode is a file's mode; members of the pod's group may read it too.
func fileMode(f file, gid int) os.FileMode {
	if gid >= 0 {
		return f.mode | 0o440
	}
	return f.mode
}

// shows reports whether dir is as publish would leave it.
func shows(dir string, want files, gid int) bool {
	found := 0
	data, err := filepath.EvalSymlinks(filepath.Join(dir, dataLink))
	if err != nil {
		return false
	}
	err = filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		f, ok := want[rel]
		info, statErr := d.Info()
		if !ok || statErr != nil || info.Mode() != fileMode(f, gid) {
			return fs.SkipAll
		}
		have, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(have, f.data) {
			return fs.SkipAll
		}
		if _, err := os.Lstat(filepath.Join(dir, top(rel))); err != nil {
			return fs.SkipAll
		}
		found++
		return nil
	})
	return err == nil && found == len(want)
}

// top is the first part of a path.
func top(path string) string {
	first, _, _ := strings.Cut(path, string(filepath.Separator))
	return first
}

func fill(data string, want files, gid int) error {
	for path, f := range want {
		full := filepath.Join(data, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(full, f.data, 0o600); err != nil {
			return err
		}
		if gid >= 0 {
			if err := chgrp(full, gid); err != nil {
				return err
			}
		}
		if err := os.Chmod(full, fileMode(f, gid)); err != nil {
			return err
		}
	}
	return filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if gid >= 0 {
			if err := chgrp(path, gid); err != nil {
				return err
			}
		}
		return os.Chmod(path, 0o755)
	})
}

// chgrp gives a path to a group. An agent that is not root cannot; its pods do not run
// as other users either.
func chgrp(path string, gid int) error {
	err := os.Chown(path, -1, gid)
	if err == nil || errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		return nil
	}
	return fmt.Errorf("fsGroup %d: %w", gid, err)
}

// swap lets ..data show data, in one step.
func swap(dir, data string) error {
	link := filepath.Join(dir, newLink)
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(data, link); err != nil {
		return err
	}
	return os.Rename(link, filepath.Join(dir, dataLink))
}

// tidy links the files of want into dir and removes everything else: links to files
// that are no more, what earlier versions and interrupted ones left.
func tidy(dir, data string, want files) error {
	tops := map[string]bool{}
	for path := range want {
		tops[top(path)] = true
	}
	for name := range tops {
		err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != data && name != dataLink && !tops[name] {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
