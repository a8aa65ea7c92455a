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

	"github.com/deltaplane/deltaplane/services/controllers/nodeagent/volume"
)

func TestVolumesInMemory(t *testing.T) {
	t.Parallel()
	probe := t.TempDir()
	if err := unix.Mount("tmpfs", probe, "tmpfs", 0, ""); err != nil {
		t.Skipf("this process may not mount: %v", err)
	}
	if err := unix.Unmount(probe, 0); err != nil {
		t.Fatal(err)
	}
	api, root := &server{}, t.TempDir()
	api.put("secrets/sec", corev1.Secret{Data: map[string][]byte{"k": []byte("v")}})
	m, err := volume.New(volume.Config{Root: root, Tmpfs: true}, volume.NewObjects(api, 0, nil), slog.New(slog.NewTextHandler(t.Output(), nil)))
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
