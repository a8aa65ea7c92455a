package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// InstanceAnnotation on a node's lease names the agent that is the node.
const InstanceAnnotation = "deltaplane.io/agent-instance"

// ErrNodeTaken says that another agent is this node and alive.
var ErrNodeTaken = errors.New("node: another agent is this node")

// API is the part of the API server's client that is used: [kube.Client] has it.
type API interface {
	Get(ctx context.Context, ref kube.Ref) ([]byte, error)
	Create(ctx context.Context, ref kube.Ref, body []byte, o kube.WriteOptions) ([]byte, error)
	Update(ctx context.Context, ref kube.Ref, body []byte, o kube.WriteOptions) ([]byte, error)
	Patch(ctx context.Context, ref kube.Ref, t kube.PatchType, patch []byte, o kube.WriteOptions) ([]byte, error)
}

// Config says what the node is. Name is needed.
type Config struct {
	Name string
	// Instance is the agent's own name: the same for an agent that is started again on
	// the same directory, so that it need not wait for its former self; see [Instance].
	// Default a random one.
	Instance string
	// Labels and Annotations are added to the node's; hostname, os and arch are there
	// without being named. Taints are given to a node that is created.
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// Capacity and Allocatable; the latter defaults to the former, and that to what this
	// machine has and 110 pods.
	Capacity, Allocatable corev1.ResourceList
	// Addresses default to the host name and its first address that is not loopback.
	Addresses []corev1.NodeAddress
	// ProviderID is set on a node that has none.
	ProviderID string
	// HeartbeatEvery is how often the lease is renewed; it lasts four times as long. 10 s.
	HeartbeatEvery time.Duration
	// CheckEvery is how often the node's conditions are looked at; 10 s. ReportEvery is
	// how often its status is written when nothing changed; 5 min.
	CheckEvery, ReportEvery time.Duration
	// Info is the node's NodeSystemInfo where it is known; what is empty is found out.
	Info corev1.NodeSystemInfo
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Sources are the readings behind the conditions. Each says whether there is pressure and
// why; an error leaves the condition Unknown. A nil one is never under pressure. See [System].
type Sources struct {
	Memory, Disk, PID func() (Pressure, error)
}

// Pressure is one reading.
type Pressure struct {
	On      bool
	Message string
}

// Health says what keeps the node from being ready: every error is in the condition's
// message. None when it is ready. It is called at each check and must not block for long.
type Health func(ctx context.Context) []error

// Registrar keeps one node. Run may be called once.
type Registrar struct{}

// New returns a registrar. Errors name every field that is wrong.
func New(cfg Config, api API, sources Sources, health Health, log *slog.Logger) (*Registrar, error) {
	return &Registrar{}, nil
}

// Registered is closed once this agent is the node: nothing may be run before that.
func (r *Registrar) Registered() <-chan struct{} { return nil }

// Check looks at the conditions now: something may have changed.
func (r *Registrar) Check() {}

// Node is the node's object as it was last read or written; nil before it is registered.
func (r *Registrar) Node() *corev1.Node { return nil }

// Run keeps the node until ctx ends, then returns nil. It returns an error wrapping
// [ErrNodeTaken] when another agent is the node, at the start or later: the caller
// must stop at once whatever it does in the node's name.
func (r *Registrar) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// System are the readings of this machine: memory available, the file system of dir, and
// process numbers.
func System(dir string) Sources { return Sources{} }

// Instance is a name kept in a file in dir: the same whenever an agent is started on it.
func Instance(dir string) (string, error) { return "", nil }
