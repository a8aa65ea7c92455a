package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
)

// hostPath is a path of the node, once it was found to be what its type says: what becomes
// of it while the pod runs is the node's affair.
func (p *podVolumes) hostPath(name string, src *corev1.HostPathVolumeSource) (string, error) {
	if p.checked[name] {
		return src.Path, nil
	}
	path, err := hostPath(src)
	p.checked[name] = err == nil
	return path, err
}

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

// Sub is the path in its volume that a mount names by subPath or subPathExpr; "" for the
// whole volume. Env is the container's environment, for subPathExpr; a name in it that is not set
// is an error, as is a path that leaves the volume.
func Sub(vm corev1.VolumeMount, env []environ.Var) (string, error) {
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
			return "", fmt.Errorf("subPathExpr: %s is not set", strings.Join(unset, ", "))
		}
	}
	if sub != "" && (!filepath.IsLocal(sub) || strings.HasPrefix(filepath.Clean(sub), "..")) {
		return "", fmt.Errorf("subPath %q does not stay in the volume", sub)
	}
	return sub, nil
}

// SubPath is the path on the node for the index-th mount of a container, which shows a part of a
// volume; what is not there is made as a directory. It never shows anything outside of the volume,
// whatever links are in it: those that lead out are errors. With [Config.Mount] the part is bound
// to a place of its own, so that a container that can write to the volume cannot lead the mount
// elsewhere afterwards; without, that is a path into the volume. Each call shows what the path
// names now, so it is made for each start of the container.
func (m *Manager) SubPath(pod *corev1.Pod, mounts Mounts, c *corev1.Container, index int, env []environ.Var) (string, error) {
	vm := c.VolumeMounts[index]
	root, ok := mounts[vm.Name]
	if !ok {
		return "", fmt.Errorf("there is no volume %q", vm.Name)
	}
	sub, err := Sub(vm, env)
	if err != nil || sub == "" {
		return root, err
	}
	path, err := inside(root, sub)
	if err != nil || !m.cfg.Mount {
		return path, err
	}
	base, err := m.base(pod.UID)
	if err != nil {
		return "", err
	}
	target := filepath.Join(base, "sub-path", fmt.Sprintf("%s.%s.%d", vm.Name, c.Name, index))
	points, err := m.mounter.under(target)
	for _, point := range slices.Backward(points) {
		err = errors.Join(err, m.mounter.unmount(point)) // of the instance before
	}
	if err != nil {
		return "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) { // a file before, a directory now
		return "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	rel, err := filepath.Rel(root, path)
	if err == nil {
		err = m.mounter.bind(root, rel, target)
	}
	if err != nil {
		return "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	return target, nil
}

// inside is the path of sub in a volume, free of links; a directory is made when nothing is
// there. It is inside the volume at the moment of the call.
func inside(volume, sub string) (string, error) {
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
	rel, err := filepath.Rel(base, path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("subPath %q leads out of the volume", sub)
	}
	return filepath.Join(volume, rel), nil
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
