package volume_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// lookUp resolves a sub path in a directory as a pod's volume, without mounts.
func lookUp(t *testing.T, root string, vm corev1.VolumeMount, env ...environ.Var) (string, error) {
	t.Helper()
	m, err := volume.New(volume.Config{Root: "/nowhere"}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := pod()
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{vm}
	return m.SubPath(p, volume.Mounts{"v": root}, &p.Spec.Containers[0], 0, env)
}

func TestSubPathsStayInTheirVolume(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	for link, to := range map[string]string{"out": outside, "up": "..", "in": "dir", "file-out": "/etc/passwd", "dangling": "../nothing"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dir", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ sub, want string }{
		{"dir", "dir"},
		{"dir/sub", "dir/sub"},
		{"in/sub", "dir/sub"},
		{"new/deep", "new/deep"},
		{"in/new", "dir/new"},
		{"dir/../dir", "dir"},
		{"out", ""},
		{"out/x", ""},
		{"up", ""},
		{"up/x", ""},
		{"file-out", ""},
		{"dangling", ""},
		{"../x", ""},
		{"/etc", ""},
		{"dir/../../x", ""},
		{"..", ""},
		{"..data", ""},
	} {
		got, err := lookUp(t, root, corev1.VolumeMount{Name: "v", SubPath: tc.sub})
		if tc.want == "" {
			if err == nil {
				t.Errorf("SubPath(%q) = %s, want an error", tc.sub, got)
			}
			continue
		}
		if want := filepath.Join(root, tc.want); err != nil || got != want {
			t.Errorf("SubPath(%q) = %s, %v; want %s", tc.sub, got, err, want)
			continue
		}
		if info, err := os.Stat(got); err != nil || !info.IsDir() {
			t.Errorf("SubPath(%q) is no directory: %v", tc.sub, err)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
}

func TestSubPathOfAMount(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	env := []environ.Var{{Name: "POD", Value: "web-0"}, {Name: "UP", Value: "../x"}}
	for _, tc := range []struct {
		vm         corev1.VolumeMount
		want, fail string
	}{
		{corev1.VolumeMount{Name: "v"}, "", ""},
		{corev1.VolumeMount{Name: "v", SubPath: "a"}, "a", ""},
		{corev1.VolumeMount{Name: "v", SubPathExpr: "logs/$(POD)"}, "logs/web-0", ""},
		{corev1.VolumeMount{Name: "v", SubPathExpr: "$(UP)"}, "", "does not stay"},
		{corev1.VolumeMount{Name: "v", SubPathExpr: "$(NONE)"}, "", "NONE is not set"},
		{corev1.VolumeMount{Name: "none"}, "", `no volume "none"`},
	} {
		got, err := lookUp(t, root, tc.vm, env...)
		switch {
		case tc.fail != "":
			if err == nil || !strings.Contains(err.Error(), tc.fail) {
				t.Errorf("%+v: %v, want an error that says %q", tc.vm, err, tc.fail)
			}
		case err != nil || got != filepath.Join(root, tc.want):
			t.Errorf("%+v: %s, %v; want %q", tc.vm, got, err, tc.want)
		}
	}
}

func FuzzSubPath(f *testing.F) {
	for _, seed := range []string{"a/b", "../a", "link/x", "/x", "a/./b/../../..", "link", ".", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, sub string) {
		base := t.TempDir()
		root := filepath.Join(base, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("..", filepath.Join(root, "link")); err != nil {
			t.Fatal(err)
		}
		got, err := lookUp(t, root, corev1.VolumeMount{Name: "v", SubPath: sub})
		if err == nil && got != root && !strings.HasPrefix(got, root+"/") {
			t.Errorf("SubPath(%q) = %q is outside of %q", sub, got, root)
		}
		if entries, _ := os.ReadDir(base); len(entries) != 1 {
			t.Errorf("SubPath(%q) left %v beside the volume", sub, entries)
		}
	})
}
