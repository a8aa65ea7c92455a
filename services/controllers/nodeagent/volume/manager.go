package volume

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/controllers/nodeagent/environ"
)

// Config says where volumes live. Root is the directory of all pods. Tmpfs mounts a
// memory file system for emptyDir volumes of medium Memory and for secrets and tokens; it
// needs Linux and the right to mount, and where mounting is refused a plain directory
// serves (noted in the log once). Now is the clock; default time.Now.
type Config struct {
	Root  string
	Tmpfs bool
	Now   func() time.Time
}

// Mounts are the volumes of a pod by name, as paths on the node.
type Mounts map[string]string

// Manager keeps the volumes of one node's pods. It is safe for concurrent use, for
// different pods at once; for one pod at a time.
type Manager struct {
	cfg     Config
	objects *Objects
	log     *slog.Logger
}

// New returns a manager; the root is made when the first pod needs it.
func New(cfg Config, objects *Objects, log *slog.Logger) (*Manager, error) {
	if cfg.Root == "" {
		return nil, errors.New("volume: no root")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Manager{cfg: cfg, objects: objects, log: log}, nil
}

// Setup makes the volumes of pod, or brings them up to date: it is called before the
// pod's containers start and at every sync after that. Errors name the volume and what
// it misses; the volumes that could be made are in the result beside the error. A pod whose
// volumes cannot be made stays Pending with the Event FailedMount, and is tried again.
func (m *Manager) Setup(ctx context.Context, pod *corev1.Pod, facts environ.Facts) (Mounts, error) {
	return nil, errors.ErrUnsupported
}

// SubPath is the path on the node of one mount of a container: the volume's own, or the
// file or directory in it that subPath or subPathExpr name, made when it is not there.
// The path is resolved without ever leaving the volume, whatever links are in it. Env
// is the container's environment, for subPathExpr.
func (m *Manager) SubPath(mounts Mounts, vm corev1.VolumeMount, env []environ.Var) (string, error) {
	return "", errors.ErrUnsupported
}

// Teardown removes what Setup made for a pod. It may be repeated.
func (m *Manager) Teardown(uid types.UID) error {
	return errors.ErrUnsupported
}

// Pods lists the pods that have volumes on this node, for those who clean up after pods
// that are gone.
func (m *Manager) Pods() ([]types.UID, error) {
	return nil, errors.ErrUnsupported
}
