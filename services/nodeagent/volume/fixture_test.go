package volume_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// server is an API server of config maps, secrets and tokens.
type server struct {
	mu      sync.Mutex
	objects map[string]any // by resource/name
	err     error
	gets    atomic.Int64
	tokens  []authenticationv1.TokenRequest
}

func (s *server) Get(_ context.Context, ref kube.Ref) ([]byte, error) {
	s.gets.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[ref.Resource.Name+"/"+ref.Name]
	switch {
	case s.err != nil:
		return nil, s.err
	case !ok:
		return nil, &kube.StatusError{Code: http.StatusNotFound, Reason: "NotFound", Message: ref.Name + " not found"}
	}
	return json.Marshal(o)
}

// ListEach answers with what is named RESOURCE/NAMESPACE.
func (s *server) ListEach(_ context.Context, r kube.Resource, o kube.ListOptions, _ func(kube.Page) error, item func([]byte) error) (kube.Page, error) {
	s.gets.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	all, ok := s.objects[r.Name+"/"+o.Namespace].([]corev1.Service)
	switch {
	case s.err != nil:
		return kube.Page{}, s.err
	case !ok:
		return kube.Page{}, &kube.StatusError{Code: http.StatusNotFound, Reason: "NotFound"}
	}
	for i := range all {
		raw, err := json.Marshal(&all[i])
		if err = errors.Join(err, item(raw)); err != nil {
			return kube.Page{}, err
		}
	}
	return kube.Page{}, nil
}

func (s *server) Create(_ context.Context, ref kube.Ref, body []byte, _ kube.WriteOptions) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	var req authenticationv1.TokenRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, err
	}
	s.tokens = append(s.tokens, req)
	req.Status.Token = fmt.Sprintf("%s/%s-%d", ref.Name, ref.Subresource, len(s.tokens))
	return json.Marshal(req)
}

func (s *server) put(name string, o any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = map[string]any{}
	}
	s.objects[name] = o
}

func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// bench is a manager on a directory, with a clock of its own.
type bench struct {
	*volume.Manager
	api   *server
	root  string
	clock atomic.Int64
}

func (b *bench) now() time.Time       { return time.Unix(b.clock.Load(), 0) }
func (b *bench) pass(d time.Duration) { b.clock.Add(int64(d / time.Second)) }
func (b *bench) path(p ...string) string {
	return filepath.Join(append([]string{b.root, "u1", "volumes"}, p...)...)
}

func (b *bench) setup(t *testing.T, p *corev1.Pod) volume.Mounts {
	t.Helper()
	mounts, err := b.Setup(t.Context(), p, facts)
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

var facts = environ.Facts{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4")}}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{api: &server{}, root: t.TempDir()}
	b.clock.Store(1_800_000_000)
	var err error
	b.Manager, err = volume.New(volume.Config{Root: b.root, Now: b.now}, volume.NewObjects(b.api, 10*time.Second, b.now), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Teardown("u1"); err != nil {
			t.Error(err)
		}
	})
	return b
}

func pod(volumes ...corev1.Volume) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "robot", Volumes: volumes, Containers: []corev1.Container{{Name: "main"}}}}
	p.Namespace, p.Name, p.UID, p.Labels = "ns", "web", "u1", map[string]string{"app": "web"}
	return p
}

func vol(name string, src corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: src}
}

// tree lists the visible files of a directory: path, mode and content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		base, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			b, err := os.ReadFile(path)
			out[e.Name()+strings.TrimPrefix(path, base)] = fmt.Sprintf("%o %s", info.Mode().Perm(), b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func wantTree(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("files of %s (-want +got):\n%s", filepath.Base(dir), diff)
	}
}
