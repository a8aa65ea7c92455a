package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
)

// Config says where volumes live.
type Config struct {
	// Root is the directory of all pods; a pod's volumes are in Root/UID/volumes. Others
	// may keep files of the pod in Root/UID.
	Root string
	// Mount allows to mount, on Linux: memory file systems for emptyDir volumes of medium Memory,
	// which also enforces their sizeLimit, and for secrets and tokens, which then are on no disk; and
	// sub paths (see [Manager.SubPath]). Where memory is refused, and without Mount, plain directories
	// serve. Runtimes whose containers do nothing need no mounts.
	Mount bool
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Mounts are the volumes of a pod by name, as paths on the node.
type Mounts map[string]string

// Manager keeps the volumes of one node's pods. It is safe for concurrent use for different
// pods; calls for one pod come one after the other.
type Manager struct {
	cfg     Config
	objects *Objects
	log     *slog.Logger

	mu      sync.Mutex
	pods    map[types.UID]*podVolumes // guarded by mu; what is in one belongs to the calls for its pod
	plain   sync.Once                 // says once that memory is not to be had
	mounter mounter
}

// podVolumes is what is remembered of a pod: its tokens, the host paths and memory file systems
// that were found to be what they should, and the volumes that could not be refreshed the last
// time.
type podVolumes struct {
	tokens         map[tokenKey]*token
	checked, stale map[string]bool
}

func (m *Manager) pod(uid types.UID) *podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil {
		p = &podVolumes{tokens: map[tokenKey]*token{}, checked: map[string]bool{}, stale: map[string]bool{}}
		m.pods[uid] = p
	}
	return p
}

// New returns a manager; nothing is made before the first pod. The error says what is wrong
// with cfg.
func New(cfg Config, objects *Objects, log *slog.Logger) (*Manager, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("volume: root %q is not an absolute path", cfg.Root)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Manager{cfg: cfg, objects: objects, log: log, pods: map[types.UID]*podVolumes{}, mounter: systemMounter{}}, nil
}

// Error says which volume of a pod cannot be made, and why. The pod stays Pending with the
// Event FailedMount, and is tried again.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("volume %q: %v", e.Volume, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Setup makes the volumes of pod, or brings them up to date: it is called before the
// pod's containers start and at every sync after that. The error joins an [*Error] for
// each volume that cannot be used; the others are in the result beside it. A volume that was made
// before and cannot be brought up to date stays as it was, which is logged and no
// error: containers may run on and start with it.
func (m *Manager) Setup(ctx context.Context, pod *corev1.Pod, facts environ.Facts) (Mounts, error) {
	base, err := m.base(pod.UID)
	if err != nil {
		return nil, err
	}
	out := make(Mounts, len(pod.Spec.Volumes))
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		path, err := m.one(ctx, base, pod, v, facts)
		if err != nil {
			errs = append(errs, &Error{Volume: v.Name, Err: err})
			continue
		}
		out[v.Name] = path
	}
	return out, errors.Join(errs...)
}

// one makes or refreshes one volume.
func (m *Manager) one(ctx context.Context, base string, pod *corev1.Pod, v *corev1.Volume, facts environ.Facts) (string, error) {
	if !plain(v.Name) {
		return "", errors.New("its name is no file name")
	}
	known := m.pod(pod.UID)
	f := filler{m: m, pod: pod, facts: facts, known: known, files: files{}}
	var err error
	kind, memory := "", false
	switch {
	case v.VolumeSource == corev1.VolumeSource{}: // the API's default
		return m.emptyDir(filepath.Join(base, "empty-dir", v.Name), pod, &corev1.EmptyDirVolumeSource{}, known)
	case v.EmptyDir != nil:
		return m.emptyDir(filepath.Join(base, "empty-dir", v.Name), pod, v.EmptyDir, known)
	case v.HostPath != nil:
		return known.hostPath(v.Name, v.HostPath)
	case v.ConfigMap != nil:
		kind, err = "configmap", f.configMap(ctx, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional, mode(v.ConfigMap.DefaultMode))
	case v.Secret != nil:
		kind, memory, err = "secret", true, f.secret(ctx, v.Secret.SecretName, v.Secret.Items, v.Secret.Optional, mode(v.Secret.DefaultMode))
	case v.DownwardAPI != nil:
		kind, err = "downward-api", f.downward(v.DownwardAPI.Items, mode(v.DownwardAPI.DefaultMode))
	case v.Projected != nil:
		kind, memory, err = "projected", true, f.projected(ctx, v.Name, v.Projected)
	default:
		return "", errors.New("its kind is not supported")
	}
	dir := filepath.Join(base, kind, v.Name)
	if err == nil {
		var mount func()
		if memory {
			mount = func() { m.memory(known, dir, 0, 0o755, -1) }
		}
		err = m.publish(dir, f.files, group(pod), mount)
	}
	if err == nil || !made(dir) {
		delete(known.stale, v.Name)
		return dir, err
	}
	if !known.stale[v.Name] { // the next syncs would say the same
		m.log.Warn("volume not refreshed", slog.String("namespace", pod.Namespace), slog.String("pod", pod.Name), slog.String("volume", v.Name), slog.Any("error", err))
	}
	known.stale[v.Name] = true
	return dir, nil
}

func mode(m *int32) os.FileMode {
	if m == nil {
		return 0o644
	}
	return os.FileMode(*m) & os.ModePerm
}

// group is the pod's fsGroup, -1 for none.
func group(pod *corev1.Pod) int {
	if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		return int(*s.FSGroup)
	}
	return -1
}

// emptyDir makes a directory for all users; with a group, for its members as well,
// whose files then belong to it.
func (m *Manager) emptyDir(dir string, pod *corev1.Pod, src *corev1.EmptyDirVolumeSource, known *podVolumes) (string, error) {
	perm := os.FileMode(0o777)
	if group(pod) >= 0 {
		perm |= os.ModeSetgid
	}
	if _, err := os.Lstat(dir); err != nil {
		if err := makeDir(dir, perm, group(pod)); err != nil {
			return "", err
		}
	}
	if src.Medium == corev1.StorageMediumMemory {
		var size int64
		if src.SizeLimit != nil {
			size = src.SizeLimit.Value()
		}
		m.memory(known, dir, size, perm, group(pod))
	}
	return dir, nil
}

// makeDir makes a directory with perm whatever the umask, of group gid when that is not negative.
func makeDir(dir string, perm os.FileMode, gid int) error {
	// Made beside and renamed, so that one that is there is complete.
	making := dir + ".making"
	if err := errors.Join(os.RemoveAll(making), os.MkdirAll(making, 0o750)); err != nil {
		return err
	}
	if gid >= 0 {
		if err := chgrp(making, gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(making, perm); err != nil {
		return err
	}
	return os.Rename(making, dir)
}

// memory mounts a memory file system on a directory of a pod, where that can be done. One that is
// there already is looked at once: a machine that was restarted has the directories of before, with
// nothing on them. What a directory holds is not covered: containers may use it.
func (m *Manager) memory(known *podVolumes, dir string, size int64, perm os.FileMode, gid int) {
	if !m.cfg.Mount || known.checked[dir] {
		return
	}
	known.checked[dir] = true
	points, err := m.mounter.under(dir)
	if err == nil {
		var entries []os.DirEntry
		if entries, err = os.ReadDir(dir); len(points)+len(entries) > 0 {
			return
		}
	}
	if err == nil {
		err = m.mounter.tmpfs(dir, size, perm, gid)
	}
	if err != nil {
		m.plain.Do(func() {
			m.log.Warn("no memory file system, plain directories instead", slog.String("directory", dir), slog.Any("error", err))
		})
	}
}

// plain reports whether a name can be that of one file, and leads nowhere else.
func plain(name string) bool {
	return name != "" && name != "." && filepath.IsLocal(name) && !strings.ContainsRune(name, filepath.Separator)
}

// base is the directory of a pod's volumes.
func (m *Manager) base(uid types.UID) (string, error) {
	if !plain(string(uid)) {
		return "", fmt.Errorf("volume: pod UID %q is no directory name", uid)
	}
	return filepath.Join(m.cfg.Root, string(uid), "volumes"), nil
}

// Teardown removes what Setup made for a pod; what hostPath volumes show is not
// touched. It may be repeated.
func (m *Manager) Teardown(uid types.UID) error {
	base, err := m.base(uid)
	if err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	// Whatever is mounted below must not be emptied: it is unmounted first, or the whole fails.
	points, err := m.mounter.under(base)
	if err != nil {
		return fmt.Errorf("volume: pod %s: %w", uid, err)
	}
	for _, point := range slices.Backward(points) {
		if err := m.mounter.unmount(point); err != nil {
			return fmt.Errorf("volume: pod %s: unmount %q: %w", uid, filepath.Base(point), err)
		}
	}
	if err := os.RemoveAll(base); err != nil {
		return fmt.Errorf("volume: pod %s: %w", uid, err)
	}
	os.Remove(filepath.Dir(base)) // others may keep something there
	return nil
}

// Pods lists the pods that have volumes on this node, for those who clean up after pods
// that are gone.
func (m *Manager) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(m.cfg.Root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("volume: %w", err)
	}
	var out []types.UID
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(m.cfg.Root, e.Name(), "volumes")); err == nil {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out, nil
}
