package volume_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

func TestVolumesOfFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.api.put("configmaps/cm", corev1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"bin": {0, 1}}})
	b.api.put("secrets/sec", corev1.Secret{Data: map[string][]byte{"pass": []byte("s3cret"), "user": []byte("ann")}})
	ref := corev1.LocalObjectReference{Name: "cm"}
	got := b.setup(t, pod(
		vol("cm", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref}}),
		vol("items", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref, DefaultMode: new(int32(0o600)), Items: []corev1.KeyToPath{
			{Key: "a", Path: "deep/er/a"}, {Key: "b", Path: "b", Mode: new(int32(0o444))},
		}}}),
		vol("sec", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "sec", DefaultMode: new(int32(0o400))}}),
		vol("none", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none", Optional: new(true)}}),
		vol("down", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}, Mode: new(int32(0o640))},
		}}}),
		vol("all", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "aud", ExpirationSeconds: new(int64(3607))}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref, Items: []corev1.KeyToPath{{Key: "a", Path: "ca.crt"}}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "sec"}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
		}}}),
	))
	wantTree(t, got["cm"], map[string]string{"a": "644 1", "b": "644 2", "bin": "644 \x00\x01"})
	wantTree(t, got["items"], map[string]string{"deep/er/a": "600 1", "b": "444 2"})
	wantTree(t, got["sec"], map[string]string{"pass": "400 s3cret", "user": "400 ann"})
	wantTree(t, got["none"], map[string]string{})
	wantTree(t, got["down"], map[string]string{"labels": `644 app="web"`, "cpu": "640 4"})
	wantTree(t, got["all"], map[string]string{"token": "644 robot/token-1", "ca.crt": "644 1", "pass": "644 s3cret", "user": "644 ann", "namespace": "644 ns"})
	bound := b.api.tokens[0].Spec
	if ref := bound.BoundObjectRef; ref.Kind != "Pod" || ref.Name != "web" || ref.UID != "u1" || *bound.ExpirationSeconds != 3607 || bound.Audiences[0] != "aud" {
		t.Errorf("the token was asked for with %+v", bound)
	}
}

func TestChangesAppearAllAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := pod(vol("cm", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}))
	b.api.put("configmaps/cm", corev1.ConfigMap{Data: map[string]string{"a": "1", "gone": "x"}})
	dir := b.setup(t, p)["cm"]
	data := func() string {
		link, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	first := data()
	b.pass(time.Minute)
	b.setup(t, p)
	if got := data(); got != first {
		t.Errorf("..data moved from %s to %s though nothing changed", first, got)
	}
	b.api.put("configmaps/cm", corev1.ConfigMap{Data: map[string]string{"a": "2", "new": "y"}})
	b.setup(t, p)
	if got := data(); got != first {
		t.Error("what was read is believed for some seconds")
	}
	// What a run that was killed in the middle leaves.
	for _, left := range []string{"..2026_01_01_00_00_00.1/a", "..data_tmp/a"} {
		if err := os.MkdirAll(filepath.Join(dir, left), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	b.pass(time.Minute)
	b.setup(t, p)
	wantTree(t, dir, map[string]string{"a": "644 2", "new": "644 y"})
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{data(), "..data", "a", "new"}; !cmp.Equal(names, want) || data() == first {
		t.Errorf("the directory holds %v, want %v", names, want)
	}
}

// A reader that follows ..data once sees files of one version.
func TestReadersSeeOneVersion(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := pod(vol("cm", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}))
	write := func(n int) {
		v := strings.Repeat(fmt.Sprint(n%10), 100)
		b.api.put("configmaps/cm", corev1.ConfigMap{Data: map[string]string{"a": v, "b": v}})
		b.pass(time.Minute)
		b.setup(t, p)
	}
	write(0)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := os.Readlink(b.path("configmap", "cm", "..data")); err != nil {
				t.Errorf("..data is not there: %v", err)
				return
			}
			data, err := os.Open(b.path("configmap", "cm", "..data"))
			if err != nil {
				continue // the version that the link named went while it was opened
			}
			root := fmt.Sprintf("/proc/self/fd/%d/", data.Fd())
			x, errX := os.ReadFile(root + "a")
			y, errY := os.ReadFile(root + "b")
			data.Close()
			if errX == nil && errY == nil && string(x) != string(y) {
				t.Errorf("read %q and %q", x, y)
				return
			}
		}
	})
	for i := range 100 {
		write(i)
	}
	close(stop)
	reader.Wait()
}

func TestMissingObjectsAreNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.api.put("configmaps/cm", corev1.ConfigMap{Data: map[string]string{"a": "1"}})
	item := []corev1.KeyToPath{{Key: "none", Path: "x"}}
	got, err := b.Setup(t.Context(), pod(
		vol("cm", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}}),
		vol("key", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: item}}),
		vol("sec", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "gone"}}}}}}),
		vol("nfs", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}),
		vol("fine", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
	), facts)
	for _, want := range []string{`volume "cm": configmap "none" not found`, `volume "key": configmap "cm" has no key "none"`, `volume "sec": secret "gone" not found`, `volume "nfs": its kind is not supported`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Setup() = %v, want it to say %q", err, want)
		}
	}
	if _, ok := errors.AsType[*volume.Error](err); !ok || len(got) != 1 || got["fine"] == "" {
		t.Errorf("mounts %v, want the one that could be made", got)
	}
	// Once the object is there the same pod goes on.
	b.api.put("configmaps/none", corev1.ConfigMap{Data: map[string]string{"k": "v"}})
	b.setup(t, pod(vol("cm", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}})))
}

func TestVolumesStayWhenTheServerIsAway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.api.put("configmaps/cm", corev1.ConfigMap{Data: map[string]string{"a": "1"}})
	p := pod(vol("cm", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}))
	b.setup(t, p)
	b.api.fail(errors.New("connection refused"))
	b.pass(time.Hour)
	wantTree(t, b.setup(t, p)["cm"], map[string]string{"a": "644 1"})
}

func TestTokensAreRenewed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		life  time.Duration
		renew time.Duration
	}{
		{time.Hour, 48 * time.Minute},
		{365 * 24 * time.Hour, 24 * time.Hour},
		{1 << 32 * time.Second, 24 * time.Hour}, // the most that can be asked for
	} {
		b := newBench(t)
		p := pod(vol("t", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(tc.life / time.Second))}},
		}}}))
		b.setup(t, p)
		b.pass(tc.renew - time.Second)
		wantTree(t, b.setup(t, p)["t"], map[string]string{"token": "644 robot/token-1"})
		b.pass(time.Second)
		b.api.fail(errors.New("connection refused"))
		wantTree(t, b.setup(t, p)["t"], map[string]string{"token": "644 robot/token-1"})
		b.api.fail(nil)
		wantTree(t, b.setup(t, p)["t"], map[string]string{"token": "644 robot/token-2"})
	}
}

func TestEmptyDir(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := pod(vol("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), vol("default", corev1.VolumeSource{}), vol("m", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}))
	got := b.setup(t, p)
	for name, dir := range got {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o777 {
			t.Errorf("%s: %v, %v; want a directory for all", name, info.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(got["e"], "kept"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.setup(t, p)
	wantTree(t, got["e"], map[string]string{"kept": "600 x"})
}

func TestFSGroupOwnsTheVolumes(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	b := newBench(t)
	b.api.put("secrets/sec", corev1.Secret{Data: map[string][]byte{"k": []byte("v")}})
	p := pod(vol("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), vol("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "sec", DefaultMode: new(int32(0o400))}}))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(2345))}
	got := b.setup(t, p)
	for path, mode := range map[string]fs.FileMode{got["e"]: 0o777 | fs.ModeSetgid | fs.ModeDir, filepath.Join(got["s"], "k"): 0o440} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 2345 || info.Mode() != mode {
			t.Errorf("%s: group %d, mode %v; want 2345, %v", filepath.Base(path), gid, info.Mode(), mode)
		}
	}
	data, err := os.Readlink(filepath.Join(got["s"], "..data"))
	if err != nil {
		t.Fatal(err)
	}
	b.setup(t, p)
	if again, _ := os.Readlink(filepath.Join(got["s"], "..data")); again != data {
		t.Error("the volume was written again though nothing changed")
	}
}

func TestTeardownLeavesNothingOfThePod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.setup(t, pod(vol("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), vol("h", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}})))
	if err := os.Symlink(host, b.path("empty-dir", "e", "link")); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Pods(); err != nil || !cmp.Equal(got, []types.UID{"u1"}) {
		t.Errorf("Pods() = %v, %v", got, err)
	}
	for range 2 {
		if err := b.Teardown("u1"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := b.Pods(); err != nil || len(got) != 0 {
		t.Errorf("Pods() = %v, %v after the teardown", got, err)
	}
	if _, err := os.Stat(filepath.Join(host, "file")); err != nil {
		t.Errorf("the teardown reached the node's own files: %v", err)
	}
	if entries, err := os.ReadDir(b.root); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestHostPathTypes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, tc := range []struct {
		kind corev1.HostPathType
		path string
		ok   bool
	}{
		{"", filepath.Join(dir, "nothing"), true},
		{corev1.HostPathDirectory, dir, true},
		{corev1.HostPathDirectory, file, false},
		{corev1.HostPathDirectory, filepath.Join(dir, "nothing"), false},
		{corev1.HostPathDirectoryOrCreate, filepath.Join(dir, "made/deep"), true},
		{corev1.HostPathFile, file, true},
		{corev1.HostPathFile, dir, false},
		{corev1.HostPathFileOrCreate, filepath.Join(dir, "new"), true},
		{corev1.HostPathFileOrCreate, dir, false},
		{corev1.HostPathSocket, file, false},
		{corev1.HostPathCharDev, "/dev/null", true},
		{corev1.HostPathBlockDev, "/dev/null", false},
		{"Other", dir, false},
		{"", "relative", false},
	} {
		p := pod(vol("h", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: tc.path, Type: &tc.kind}}))
		p.UID = types.UID(fmt.Sprintf("u%d", i))
		_, err := b.Setup(t.Context(), p, facts)
		if (err == nil) != tc.ok {
			t.Errorf("type %q of %s: %v, want it fine: %v", tc.kind, filepath.Base(tc.path), err, tc.ok)
		}
	}
	// A socket whose owner is started again while the pod runs is no reason to stop looking after the
	// pod.
	p := pod(vol("h", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: file, Type: new(corev1.HostPathFile)}}))
	b.setup(t, p)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.setup(t, p)
}

func TestPathsThatLeaveTheVolumeAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.api.put("configmaps/cm", corev1.ConfigMap{Data: map[string]string{"a": "1"}})
	b.api.put("configmaps/bad", corev1.ConfigMap{Data: map[string]string{"../a": "1"}})
	for _, path := range []string{"../out", "/etc/x", "a/../../x", "..data", "", ".", "..x/y"} {
		_, err := b.Setup(t.Context(), pod(vol("v", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: []corev1.KeyToPath{{Key: "a", Path: path}},
		}})), facts)
		if err == nil {
			t.Errorf("path %q was taken", path)
		}
	}
	if _, err := b.Setup(t.Context(), pod(vol("v", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "bad"}}})), facts); err == nil {
		t.Error("a key that leads out was taken")
	}
	for _, name := range []string{"../v", "", "a/b", "..", "."} {
		if _, err := b.Setup(t.Context(), pod(vol(name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})), facts); err == nil {
			t.Errorf("volume name %q was taken", name)
		}
	}
	for _, uid := range []types.UID{"", "..", "a/b", "."} {
		p := pod(vol("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
		p.UID = uid
		if _, err := b.Setup(t.Context(), p, facts); err == nil {
			t.Errorf("UID %q was taken", uid)
		}
		if err := b.Teardown(uid); err == nil {
			t.Errorf("Teardown(%q) is no error", uid)
		}
	}
}

func TestOneReadServesThePodsOfANode(t *testing.T) {
	t.Parallel()
	api := &server{}
	api.put("configmaps/cm", corev1.ConfigMap{})
	objects := volume.NewObjects(api, time.Minute, nil)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := objects.ConfigMap(t.Context(), "ns", "cm"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := api.gets.Load(); n != 1 {
		t.Errorf("%d reads, want 1", n)
	}
	for range 2 {
		if _, err := objects.ConfigMap(t.Context(), "ns", "none"); !kube.IsNotFound(err) {
			t.Errorf("a missing one: %v", err)
		}
	}
	if n := api.gets.Load(); n != 3 {
		t.Errorf("%d reads, want what is missing to be asked for every time", n)
	}
}

func TestServicesAreReadOnceForThePodsOfANode(t *testing.T) {
	t.Parallel()
	api := &server{}
	api.put("services/ns", []corev1.Service{{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}})
	objects := volume.NewObjects(api, time.Minute, nil)
	for range 2 {
		if all, err := objects.Services(t.Context(), "ns"); err != nil || len(all) != 1 || all[0].Spec.ClusterIP != "10.0.0.1" {
			t.Errorf("Services() = %v, %v", all, err)
		}
		if all, err := objects.Services(t.Context(), "other"); err != nil || len(all) != 0 {
			t.Errorf("where there are none: %v, %v", all, err)
		}
	}
	if n := api.gets.Load(); n != 2 {
		t.Errorf("%d reads, want one for each namespace", n)
	}
	api.fail(errors.New("away"))
	if _, err := objects.Services(t.Context(), "third"); err == nil || !strings.Contains(err.Error(), "services of namespace third: away") {
		t.Errorf("Services() of a server that is away: %v", err)
	}
}
