package podstatus

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// API is the API server: pods are read, their statuses patched, and pods deleted at last.
type API interface {
	kube.Getter
	kube.Patcher
	kube.Deleter
}

// Config of a manager; the zero value is the kubelet's.
type Config struct {
	// QPS and Burst bound the calls for all pods together; 50 and 100.
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
	// Metrics, if set, gets kubelet_pod_status_sync_duration_seconds, from the first
	// status that was not written to its write, and the calls by their outcome.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	c.QPS, c.Burst, c.Writers = cmp.Or(c.QPS, 50), cmp.Or(c.Burst, 100), cmp.Or(c.Writers, 4)
	c.Retry, c.RetryMax, c.Timeout = cmp.Or(c.Retry, 100*time.Millisecond), cmp.Or(c.RetryMax, 30*time.Second), cmp.Or(c.Timeout, 10*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"qps", c.QPS < 0},
		{"burst", c.Burst < 1},
		{"writers", c.Writers < 1},
		{"retry", c.Retry < 0},
		{"retry max", c.RetryMax < c.Retry},
		{"timeout", c.Timeout < 0},
	} {
		if f.bad {
			faults = append(faults, fmt.Errorf("podstatus: %s is out of range", f.name))
		}
	}
	return errors.Join(faults...)
}

// Manager keeps the newest status of every pod of a node until the API server has
// it. It is safe for concurrent use; nothing is written unless Run runs.
type Manager struct {
	cfg     Config
	api     API
	log     *slog.Logger
	limit   *rate.Limiter
	metrics *metrics

	mu   sync.Mutex
	pods map[types.UID]*entry // guarded by mu
	line []types.UID          // pods to be looked at, each once; guarded by mu
	work chan struct{}        // holds one token while line is not empty

	abort func() // cancels what is written; nil before Run. Guarded by mu
}

// entry is one pod. All fields are guarded by the manager's mu.
type entry struct {
	namespace, name string
	uid             types.UID

	want *corev1.PodStatus // nil until Set
	turn uint64            // grows with want and with what else is to be done
	live *corev1.Pod       // as the API server has it, for all that is known; nil: read it first
	seen *corev1.Pod       // observed while it was written

	stopped  bool // nothing of it runs any more
	finished bool // and it is cleared away
	gone     bool // the API server has it no more

	queued, busy bool
	since        time.Time // of the oldest status that is not written
	failures     int
	retry        *time.Timer
}

// New returns a manager. Errors name every field that is wrong.
func New(cfg Config, api API, log *slog.Logger) (*Manager, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("podstatus: metrics: %w", err)
	}
	return &Manager{
		cfg: cfg, api: api, log: log, limit: rate.NewLimiter(rate.Limit(cfg.QPS), cfg.Burst), metrics: metrics,
		pods: map[types.UID]*entry{}, work: make(chan struct{}, 1),
	}, nil
}

// Set notes the newest status of a pod, which is written soon. Pod is the pod as the
// caller knows it. A status in which a container that may not run again leaves its end is
// refused and logged: it would be a mistake of the caller's.
func (m *Manager) Set(pod *corev1.Pod, status corev1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(m.entry(pod), pod, status)
}

func (m *Manager) set(e *entry, pod *corev1.Pod, status corev1.PodStatus) {
	old := &pod.Status
	if e.want != nil {
		old = e.want
	}
	if name := revived(pod, old, &status); name != "" {
		m.log.Error("status refused: a container left its end", slog.String("namespace", pod.Namespace), slog.String("pod", pod.Name), slog.String("container", name))
		return
	}
	status = *status.DeepCopy()
	Normalize(pod, &status)
	if terminal(old.Phase) && !terminal(status.Phase) {
		status.Phase, status.Reason, status.Message = old.Phase, old.Reason, old.Message
	}
	if e.want != nil && equality.Semantic.DeepEqual(*e.want, status) {
		return
	}
	e.want = &status
	m.changed(e)
}

// Get is the last status that was set; false when none was. The caller may change it.
func (m *Manager) Get(uid types.UID) (corev1.PodStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.pods[uid]
	if e == nil || e.want == nil {
		return corev1.PodStatus{}, false
	}
	return *e.want.DeepCopy(), true
}

// Observe notes a pod as the API server has it: what others wrote is merged, what they
// wrote over is restored, and a deletion is taken notice of. An older version than the one
// known is ignored. Pod must not be changed afterwards.
func (m *Manager) Observe(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.pods[pod.UID]
	if e == nil {
		return // Set brings it along
	}
	if e.gone || !newer(pod, e.live) {
		return
	}
	if e.busy {
		if newer(pod, e.seen) {
			e.seen = pod
		}
		return
	}
	e.live = pod
	if e.want != nil {
		m.push(e)
	}
}

// Stopped says that nothing of a pod runs any more nor ever will: its phase may
// become terminal.
func (m *Manager) Stopped(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entry(pod); !e.stopped {
		e.stopped = true
		m.changed(e)
	}
}

// Finish says that nothing of a pod runs or ever will, and that it was cleared away
// (upstream's TerminatePod): containers of which nothing is known count as failed, the phase
// becomes terminal, and once that status is written a pod that is being deleted is
// deleted permanently.
func (m *Manager) Finish(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entry(pod)
	if e.finished {
		return
	}
	status := *pod.Status.DeepCopy()
	if e.want != nil {
		status = *e.want.DeepCopy()
	}
	e.stopped, e.finished = true, true
	m.set(e, pod, final(pod, status))
	m.changed(e)
}

// Forget drops a pod that is gone from the API server.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(uid)
}

// Abort cancels what is written and lets nothing more be: another agent writes the statuses of
// these pods now. The manager is of no use afterwards: the caller stops Run as well.
func (m *Manager) Abort() {
	m.mu.Lock()
	abort := m.abort
	m.mu.Unlock()
	if abort != nil {
		abort()
	}
}

// Retain drops every pod that keep does not know: a net for those whose Forget came
// before their last Set.
func (m *Manager) Retain(keep func(types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pods {
		if !keep(uid) {
			m.drop(uid)
		}
	}
}

func (m *Manager) drop(uid types.UID) {
	if e := m.pods[uid]; e != nil {
		e.gone = true
		if e.retry != nil {
			e.retry.Stop()
		}
		delete(m.pods, uid)
	}
}

// entry is a pod's, made when it is new. The caller holds mu.
func (m *Manager) entry(pod *corev1.Pod) *entry {
	e := m.pods[pod.UID]
	if e == nil {
		e = &entry{namespace: pod.Namespace, name: pod.Name, uid: pod.UID, live: pod}
		m.pods[pod.UID] = e
		return e
	}
	if e.live != nil && !e.busy && newer(pod, e.live) {
		e.live = pod
	}
	return e
}

// newer reports whether pod is a later version than was; any is later than none.
func newer(pod, was *corev1.Pod) bool {
	return was == nil || delta.Compare(pod.ResourceVersion, was.ResourceVersion) > 0
}

// changed notes that there is something new to write. The caller holds mu.
func (m *Manager) changed(e *entry) {
	e.turn++
	if e.since.IsZero() {
		e.since = m.cfg.Now()
	}
	m.push(e)
}

// push puts a pod into the line unless it is there, or waits after a failure. The
// caller holds mu.
func (m *Manager) push(e *entry) {
	if e.gone || e.queued || e.busy || e.retry != nil {
		return // busy ones look again when they are done
	}
	e.queued = true
	m.line = append(m.line, e.uid)
	m.signal()
}

func (m *Manager) signal() {
	select {
	case m.work <- struct{}{}:
	default:
	}
}
