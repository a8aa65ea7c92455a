//go:build linux

package volume_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// mayMount skips a test where mounting is refused.
func mayMount(t *testing.T) {
	t.Helper()
	probe := t.TempDir()
	if err := unix.Mount("tmpfs", probe, "tmpfs", 0, ""); err != nil {
		t.Skipf("this process may not mount: %v", err)
	}
	if err := unix.Unmount(probe, 0); err != nil {
		t.Fatal(err)
	}
}

func TestVolumesInMemory(t *testing.T) {
	t.Parallel()
	mayMount(t)
	api, root := &server{}, t.TempDir()
	api.put("secrets/sec", corev1.Secret{Data: map[string][]byte{"k": []byte("v")}})
	m, err := volume.New(volume.Config{Root: root, Mount: true}, volume.NewObjects(api, 0, nil), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	size := resource.MustParse("1Mi")
	p := pod(
		vol("m", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}}),
		vol("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "sec"}}),
		vol("d", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
	)
	for range 2 {
		got, err := m.Setup(t.Context(), p, facts)
		if err != nil {
			t.Fatal(err)
		}
		for name, memory := range map[string]bool{"m": true, "s": true, "d": false} {
			var here, below unix.Stat_t
			if err := unix.Stat(got[name], &here); err != nil {
				t.Fatal(err)
			}
			if err := unix.Stat(filepath.Dir(got[name]), &below); err != nil {
				t.Fatal(err)
			}
			if (here.Dev != below.Dev) != memory {
				t.Errorf("%s is a file system of its own: %v, want %v", name, here.Dev != below.Dev, memory)
			}
		}
		if info, err := os.Stat(got["m"]); err != nil || info.Mode().Perm() != 0o777 {
			t.Errorf("mode %v, %v; want one for all", info.Mode(), err)
		}
		if err := os.WriteFile(filepath.Join(got["m"], "big"), make([]byte, 2<<20), 0o600); err == nil {
			t.Error("the size limit does not hold")
		}
	}
	if err := m.Teardown("u1"); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A machine that was restarted has the directories of before, with nothing mounted on them.
func TestVolumesInMemoryAreMountedAgainOnAMachineRestarted(t *testing.T) {
	t.Parallel()
	mayMount(t)
	api, root := &server{}, t.TempDir()
	api.put("secrets/sec", corev1.Secret{Data: map[string][]byte{"k": []byte("v")}})
	p := pod(
		vol("m", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}),
		vol("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "sec"}}),
	)
	agent := func() (*volume.Manager, volume.Mounts) {
		t.Helper()
		m, err := volume.New(volume.Config{Root: root, Mount: true}, volume.NewObjects(api, 0, nil), slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Setup(t.Context(), p, facts)
		if err != nil {
			t.Fatal(err)
		}
		return m, got
	}
	_, mounts := agent()
	for _, dir := range mounts {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	_, mounts = agent()
	if err := os.WriteFile(filepath.Join(mounts["m"], "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m, mounts := agent() // this time only the agent was restarted
	for name, dir := range mounts {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("%s is not in memory: %v", name, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s is on the disk as well, or mounted twice: %v, %v", name, entries, err)
		}
	}
	if err := m.Teardown("u1"); err != nil {
		t.Fatal(err)
	}
}

// A sub path shows what it named when the container started, whatever becomes of the volume.
func TestBoundSubPathsCannotBeLedElsewhere(t *testing.T) {
	t.Parallel()
	mayMount(t)
	root := t.TempDir()
	m, err := volume.New(volume.Config{Root: root, Mount: true}, volume.NewObjects(&server{}, 0, nil), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	p := pod(vol("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	c := &p.Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{{Name: "e", SubPath: "dir"}, {Name: "e", SubPath: "file"}}
	mounts, err := m.Setup(t.Context(), p, facts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Teardown(p.UID); err != nil {
			t.Error(err)
		}
	}()
	at := func(name string) string { return filepath.Join(mounts["e"], name) }
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(at("file"), "one")
	dir, err := m.SubPath(p, mounts, c, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	file, err := m.SubPath(p, mounts, c, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The container exchanges both for links out of the volume.
	outside := t.TempDir()
	write(filepath.Join(outside, "secret"), "node's own")
	for name, to := range map[string]string{"dir": outside, "file": filepath.Join(outside, "secret")} {
		if err := os.Rename(at(name), at(name+"-old")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the directory shows %v, %v", entries, err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "one" {
		t.Errorf("the file shows %q, %v", b, err)
	}
	if got, err := m.SubPath(p, mounts, c, 0, nil); err == nil {
		t.Errorf("SubPath() = %s of a link out of the volume", got)
	}
	// Put right, the next start shows the new one: a file where there was a directory.
	if err := os.Remove(at("dir")); err != nil {
		t.Fatal(err)
	}
	write(at("dir"), "two")
	again, err := m.SubPath(p, mounts, c, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(again); err != nil || string(b) != "two" {
		t.Errorf("the next start sees %q, %v", b, err)
	}
	if err := m.Teardown(p.UID); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "secret")); err != nil {
		t.Errorf("the teardown reached outside: %v", err)
	}
}

// What a hostPath's sub path shows is the node's own, and outlives the pod.
func TestTeardownSparesWhatIsBound(t *testing.T) {
	t.Parallel()
	mayMount(t)
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, "a b", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	m, err := volume.New(volume.Config{Root: t.TempDir(), Mount: true}, volume.NewObjects(&server{}, 0, nil), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	p := pod(vol("h", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}))
	c := &p.Spec.Containers[0]
	c.Name, c.VolumeMounts = "c", []corev1.VolumeMount{{Name: "h", SubPath: "a b"}}
	mounts, err := m.Setup(t.Context(), p, facts)
	if err != nil {
		t.Fatal(err)
	}
	path, err := m.SubPath(p, mounts, c, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(path, "deep")); err != nil {
		t.Error(err)
	}
	if err := m.Teardown(p.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(host, "a b", "deep")); err != nil {
		t.Errorf("the node's own directory went with the pod: %v", err)
	}
}
