package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/controllers/nodeagent/environ"
)

// hostPath checks a path of the node, or makes it where its type asks for that.
func hostPath(src *corev1.HostPathVolumeSource) (string, error) {
	kind := corev1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	if !filepath.IsAbs(src.Path) {
		return "", fmt.Errorf("host path %q is not absolute", src.Path)
	}
	info, err := os.Stat(src.Path)
	if errors.Is(err, os.ErrNotExist) {
		switch kind {
		case corev1.HostPathDirectoryOrCreate:
			return src.Path, os.MkdirAll(src.Path, 0o755)
		case corev1.HostPathFileOrCreate:
			f, err := os.OpenFile(src.Path, os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return "", err
			}
			return src.Path, f.Close()
		}
	}
	if kind == corev1.HostPathUnset {
		return src.Path, nil // as it is, even when it is not there
	}
	if err != nil {
		return "", fmt.Errorf("host path type check failed: %w", err)
	}
	var ok bool
	what := ""
	switch m := info.Mode(); kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		ok, what = m.IsDir(), "a directory"
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		ok, what = m.IsRegular(), "a file"
	case corev1.HostPathSocket:
		ok, what = m&fs.ModeSocket != 0, "a socket file"
	case corev1.HostPathCharDev:
		ok, what = m&fs.ModeCharDevice != 0, "a character device"
	case corev1.HostPathBlockDev:
		ok, what = m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0, "a block device"
	default:
		return "", fmt.Errorf("host path type %q is not known", kind)
	}
	if !ok {
		return "", fmt.Errorf("host path type check failed: %s is not %s", src.Path, what)
	}
	return src.Path, nil
}

// MountPath is the path on the node of one mount of a container: the volume's own, or
// what subPath or subPathExpr name in it (see [SubPath]). Env is the container's environment, for
// subPathExpr; a name in it that is not set is an error.
func MountPath(mounts Mounts, vm corev1.VolumeMount, env []environ.Var) (string, error) {
	root, ok := mounts[vm.Name]
	if !ok {
		return "", fmt.Errorf("mount %s: there is no volume %q", vm.MountPath, vm.Name)
	}
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		known := make(map[string]string, len(env))
		for _, v := range env {
			known[v.Name] = v.Value
		}
		var unset []string
		sub = environ.Expand(vm.SubPathExpr, func(name string) (string, bool) {
			v, ok := known[name]
			if !ok {
				unset = append(unset, name)
			}
			return v, ok
		})
		if len(unset) > 0 {
			return "", fmt.Errorf("mount %s: subPathExpr: %s is not set", vm.MountPath, strings.Join(unset, ", "))
		}
	}
	if sub == "" {
		return root, nil
	}
	path, err := SubPath(root, sub)
	if err != nil {
		return "", fmt.Errorf("mount %s: volume %q: %w", vm.MountPath, vm.Name, err)
	}
	return path, nil
}

// SubPath is the path of sub in a volume, free of links; a directory is made when nothing
// is there. It is never outside of the volume: links that lead out, and paths with "..", are
// errors. That holds for the moment of the call; a container that may write to the volume
// can exchange a directory for a link before the runtime mounts the path.
func SubPath(volume, sub string) (string, error) {
	if !filepath.IsLocal(sub) || strings.HasPrefix(filepath.Clean(sub), "..") {
		return "", fmt.Errorf("subPath %q does not stay in the volume", sub)
	}
	base, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return "", err
	}
	defer root.Close()
	switch _, err := root.Stat(sub); {
	case errors.Is(err, os.ErrNotExist):
		perm := os.FileMode(0o750)
		if info, err := root.Stat("."); err == nil {
			perm = info.Mode().Perm()
		}
		if err := makeAll(root, sub, perm); err != nil {
			return "", fmt.Errorf("subPath %q: %w", sub, err)
		}
	case err != nil:
		return "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	path, err := filepath.EvalSymlinks(filepath.Join(base, sub))
	if err != nil {
		return "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	if rel, err := filepath.Rel(base, path); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("subPath %q leads out of the volume", sub)
	}
	return path, nil
}

// makeAll makes the missing directories of path, with perm whatever the umask.
func makeAll(root *os.Root, path string, perm os.FileMode) error {
	at := ""
	for part := range strings.SplitSeq(filepath.Clean(path), string(filepath.Separator)) {
		at = filepath.Join(at, part)
		err := root.Mkdir(at, perm)
		if err == nil {
			err = root.Chmod(at, perm)
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
