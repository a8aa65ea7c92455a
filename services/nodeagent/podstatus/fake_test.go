package podstatus_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// server is an API server of pods that can be made to fail. Fault is asked before every
// call; with lost the call is carried out and its answer thrown away.
type server struct {
	mu    sync.Mutex
	pods  map[string]*corev1.Pod
	rv    int
	calls []string
	fault func(verb string) (err error, lost bool)
	slow  time.Duration
	// stored is notified of every change of a pod, nil when it is gone.
	stored func(was, is *corev1.Pod)
}

func newServer(pods ...*corev1.Pod) *server {
	s := &server{pods: map[string]*corev1.Pod{}, rv: 1}
	for _, p := range pods {
		s.pods[p.Name] = p.DeepCopy()
	}
	return s
}

func refusal(code int, reason string) error { return &kube.StatusError{Code: code, Reason: reason} }

var errDown = errors.New("connection refused")

// serve carries one call out.
func (s *server) serve(ctx context.Context, verb string, do func() ([]byte, error)) ([]byte, error) {
	if s.slow > 0 {
		t := time.NewTimer(s.slow)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, verb)
	if s.fault == nil {
		return do()
	}
	err, lost := s.fault(verb)
	if err == nil {
		return do()
	}
	if lost {
		_, _ = do()
	}
	return nil, err
}

func (s *server) find(name string) (*corev1.Pod, error) {
	p := s.pods[name]
	if p == nil {
		return nil, refusal(http.StatusNotFound, "NotFound")
	}
	return p, nil
}

func (s *server) Get(ctx context.Context, ref kube.Ref) ([]byte, error) {
	return s.serve(ctx, "get", func() ([]byte, error) {
		p, err := s.find(ref.Name)
		if err != nil {
			return nil, err
		}
		return json.Marshal(p)
	})
}

func (s *server) Patch(ctx context.Context, ref kube.Ref, _ kube.PatchType, patch []byte, _ kube.WriteOptions) ([]byte, error) {
	return s.serve(ctx, "patch", func() ([]byte, error) {
		p, err := s.find(ref.Name)
		if err != nil {
			return nil, err
		}
		var wants corev1.Pod
		if err := json.Unmarshal(patch, &wants); err != nil {
			return nil, err
		}
		if wants.UID != p.UID {
			return nil, refusal(http.StatusUnprocessableEntity, "Invalid")
		}
		if wants.ResourceVersion != p.ResourceVersion {
			return nil, refusal(http.StatusConflict, "Conflict")
		}
		raw, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		if raw, err = strategicpatch.StrategicMergePatch(raw, patch, corev1.Pod{}); err != nil {
			return nil, err
		}
		next := &corev1.Pod{}
		if err := json.Unmarshal(raw, next); err != nil {
			return nil, err
		}
		return json.Marshal(s.put(next))
	})
}

func (s *server) Delete(ctx context.Context, ref kube.Ref, o kube.DeleteOptions) ([]byte, error) {
	return s.serve(ctx, "delete", func() ([]byte, error) {
		p, err := s.find(ref.Name)
		if err != nil {
			return nil, err
		}
		if o.UID != string(p.UID) || o.Grace == nil || *o.Grace != 0 {
			return nil, refusal(http.StatusConflict, "Conflict")
		}
		if len(p.Finalizers) > 0 {
			next := p.DeepCopy()
			next.DeletionGracePeriodSeconds = new(int64(0))
			return json.Marshal(s.put(next))
		}
		delete(s.pods, ref.Name)
		if s.stored != nil {
			s.stored(p, nil)
		}
		return json.Marshal(p)
	})
}

// put stores a new version. The caller holds mu.
func (s *server) put(p *corev1.Pod) *corev1.Pod {
	s.rv++
	p.ResourceVersion = strconv.Itoa(s.rv)
	if s.stored != nil {
		s.stored(s.pods[p.Name], p)
	}
	s.pods[p.Name] = p
	return p
}

// change is a write of somebody else's; it returns the new version.
func (s *server) change(name string, f func(*corev1.Pod)) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[name]
	if p == nil {
		return nil
	}
	p = p.DeepCopy()
	f(p)
	return s.put(p).DeepCopy()
}

func (s *server) pod(name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name].DeepCopy()
}

// failing sets the fault; it is called with mu held.
func (s *server) failing(fault func(verb string) (error, bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// took returns the calls since the last time.
func (s *server) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.calls
	s.calls = nil
	return out
}

// pass lets time go by in a synctest bubble, and whatever is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// run starts a manager that is stopped with the test.
func run(t *testing.T, api podstatus.API, cfg podstatus.Config) *podstatus.Manager {
	t.Helper()
	m, err := podstatus.New(cfg, api, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil on a clean stop", err)
		}
	})
	return m
}
