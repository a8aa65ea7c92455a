package podstatus

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// API is the part of the API server's client that is used: [kube.Client] has it.
type API interface {
	Get(ctx context.Context, ref kube.Ref) ([]byte, error)
	Patch(ctx context.Context, ref kube.Ref, t kube.PatchType, patch []byte, o kube.WriteOptions) ([]byte, error)
	Delete(ctx context.Context, ref kube.Ref, o kube.DeleteOptions) ([]byte, error)
}

// Config of a manager; the zero value is the kubelet's.
type Config struct {
	// QPS and Burst bound the calls of all pods together; 50 and 100.
	QPS   float64
	Burst int
	// Writers is how many pods are written at once; 4.
	Writers int
	// Retry is the first wait after a failed write, doubling to RetryMax; 100 ms and 30 s.
	Retry, RetryMax time.Duration
	// Timeout of one call; 10 s.
	Timeout time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Metrics, if set, gets kubelet_pod_status_sync_duration_seconds and others.
	Metrics prometheus.Registerer
}

// Manager is safe for concurrent use.
type Manager struct{}

// New returns a manager. Errors name every field that is wrong.
func New(cfg Config, api API, log *slog.Logger) (*Manager, error) {
	return &Manager{}, nil
}

// Set notes the newest status of a pod; it is written soon. Pod is the pod as the
// caller knows it.
func (m *Manager) Set(pod *corev1.Pod, status corev1.PodStatus) {}

// Get is the last status that was set; false when none was.
func (m *Manager) Get(uid types.UID) (corev1.PodStatus, bool) { return corev1.PodStatus{}, false }

// Observe notes a pod as the API server has it: what others wrote is merged, a deletion
// is taken notice of, and what is there already is not written again.
func (m *Manager) Observe(pod *corev1.Pod) {}

// Finish says that nothing of a pod runs or ever will, and that its volumes are gone:
// containers of which nothing is known count as failed, the phase becomes terminal, and
// once that status is written a pod that is being deleted is deleted for good.
func (m *Manager) Finish(pod *corev1.Pod) {}

// Forget drops a pod that is gone from the API server.
func (m *Manager) Forget(uid types.UID) {}

// Run writes until ctx ends. What waits then gets two more seconds.
func (m *Manager) Run(ctx context.Context) error { <-ctx.Done(); return nil }
