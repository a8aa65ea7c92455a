package node_test

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

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/node"
)

// server is an API server of one node and one lease. While down it refuses every call.
type server struct {
	mu    sync.Mutex
	nodes map[string]*corev1.Node
	lease *coordinationv1.Lease
	rv    int
	calls map[string]int
	down  bool
}

func newServer() *server { return &server{nodes: map[string]*corev1.Node{}, calls: map[string]int{}} }

func status(code int, reason string) error { return &kube.StatusError{Code: code, Reason: reason} }

var (
	errNotFound = status(http.StatusNotFound, "NotFound")
	errConflict = status(http.StatusConflict, "Conflict")
	errExists   = status(http.StatusConflict, "AlreadyExists")
	errDown     = errors.New("connection refused")
)

func (s *server) begin(verb string, ref kube.Ref) (end func(), err error) {
	s.mu.Lock()
	s.calls[verb+" "+ref.Resource.Name]++
	if s.down {
		err = errDown
	}
	return s.mu.Unlock, err
}

func (s *server) next() string {
	s.rv++
	return strconv.Itoa(s.rv)
}

func (s *server) Get(_ context.Context, ref kube.Ref) ([]byte, error) {
	end, err := s.begin("get", ref)
	defer end()
	switch {
	case err != nil:
		return nil, err
	case ref.Resource.Name == "leases" && s.lease != nil:
		return json.Marshal(s.lease)
	case ref.Resource.Name == "nodes" && s.nodes[ref.Name] != nil:
		return json.Marshal(s.nodes[ref.Name])
	}
	return nil, errNotFound
}

func (s *server) Create(_ context.Context, ref kube.Ref, body []byte, _ kube.WriteOptions) ([]byte, error) {
	end, err := s.begin("create", ref)
	defer end()
	if err != nil {
		return nil, err
	}
	if ref.Resource.Name == "leases" {
		if s.lease != nil {
			return nil, errExists
		}
		return s.putLease(body)
	}
	var n corev1.Node
	if err := json.Unmarshal(body, &n); err != nil {
		return nil, err
	}
	if s.nodes[n.Name] != nil {
		return nil, errExists
	}
	n.ResourceVersion = s.next()
	n.UID = types(n.ResourceVersion)
	s.nodes[n.Name] = &n
	return json.Marshal(n)
}

func (s *server) putLease(body []byte) ([]byte, error) {
	l := &coordinationv1.Lease{}
	if err := json.Unmarshal(body, l); err != nil {
		return nil, err
	}
	l.ResourceVersion = s.next()
	s.lease = l
	return json.Marshal(l)
}

func (s *server) Update(_ context.Context, ref kube.Ref, body []byte, _ kube.WriteOptions) ([]byte, error) {
	end, err := s.begin("update", ref)
	defer end()
	if err != nil {
		return nil, err
	}
	var l coordinationv1.Lease
	if err := json.Unmarshal(body, &l); err != nil {
		return nil, err
	}
	switch {
	case s.lease == nil:
		return nil, errNotFound
	case l.ResourceVersion != s.lease.ResourceVersion:
		return nil, errConflict
	}
	return s.putLease(body)
}

func (s *server) Patch(_ context.Context, ref kube.Ref, _ kube.PatchType, patch []byte, _ kube.WriteOptions) ([]byte, error) {
	end, err := s.begin("patch", ref)
	defer end()
	n := s.nodes[ref.Name]
	switch {
	case err != nil:
		return nil, err
	case n == nil:
		return nil, errNotFound
	}
	var pre corev1.Node
	if err := json.Unmarshal(patch, &pre); err != nil {
		return nil, err
	}
	if pre.UID != n.UID || pre.ResourceVersion != n.ResourceVersion {
		return nil, errConflict
	}
	raw, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	if raw, err = jsonpatch.MergePatch(raw, patch); err != nil {
		return nil, err
	}
	n = &corev1.Node{}
	if err := json.Unmarshal(raw, n); err != nil {
		return nil, err
	}
	n.ResourceVersion = s.next()
	s.nodes[ref.Name] = n
	return json.Marshal(n)
}

// change is somebody else's write of the node.
func (s *server) change(f func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes["n1"].DeepCopy()
	f(n)
	n.ResourceVersion = s.next()
	s.nodes["n1"] = n
}

func (s *server) node() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes["n1"].DeepCopy()
}

func (s *server) currentLease() *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.DeepCopy()
}

// hold writes the lease as another agent would; renewed is the time written in it.
func (s *server) hold(instance string, renewed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NewMicroTime(renewed))}}
	s.lease.Name, s.lease.ResourceVersion = "n1", s.next()
	if instance != "none" {
		s.lease.Annotations = map[string]string{node.InstanceAnnotation: instance}
	}
}

func (s *server) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// took returns how many calls there were of a kind since the last time.
func (s *server) took(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.calls[call]
	delete(s.calls, call)
	return n
}

// agent is a running registrar.
type agent struct {
	*node.Registrar
	done chan error
	stop context.CancelFunc
}

func (a *agent) is() bool {
	select {
	case <-a.Registered():
		return true
	default:
		return false
	}
}

// ended waits for the end of Run.
func (a *agent) ended() error {
	err := <-a.done
	a.done <- err
	return err
}

func start(t *testing.T, api node.API, cfg node.Config, sources node.Sources, health node.Health) *agent {
	t.Helper()
	cfg.Name = "n1"
	cfg.Capacity = corev1.ResourceList{}
	r, err := node.New(cfg, api, sources, health, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	a := &agent{r, make(chan error, 1), cancel}
	go func() { a.done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-a.done
	})
	synctest.Wait()
	return a
}

// pass lets time go by in a synctest bubble, and whatever is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
