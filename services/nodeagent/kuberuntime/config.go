package kuberuntime

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// Backoff says how a delay grows: the first is Initial, each next twice the one
// before up to Max; after a run, or a quiet time, longer than Reset it starts over.
type Backoff struct{ Initial, Max, Reset time.Duration }

// Config says whose containers a manager minds and how. Node is required; the zero
// value of all else is the kubelet's default.
type Config struct {
	// Node is the node's name: everything made gets it as a label, nothing without it is touched.
	Node string
	// RootDir holds the state of restarts (crashloop.json); PodsDir, by default RootDir/pods,
	// what containers are given as files. Without RootDir the state is in memory only,
	// without both there are no files: no hosts file and no termination message but the log's tail.
	RootDir, PodsDir string
	// LogRoot is where the containers' logs go, as NAMESPACE_NAME_UID/CONTAINER/ATTEMPT.log.
	// Without it no logs are kept.
	LogRoot string
	// CrashLoop delays restarts. Default 10 s, 300 s, 600 s; an Initial beyond Max is Max.
	CrashLoop Backoff
	// ImagePull delays pulls of an image that failed. Default 10 s, 300 s, 600 s.
	ImagePull Backoff
	// ParallelPulls is how many images are pulled at once. Default 5.
	ParallelPulls int
	// HostNetworkOnly puts every pod on the node's network. Without it that happens to pods that
	// ask for it, and to all while the runtime says that it has no network.
	HostNetworkOnly bool
	// MinimumGrace is the least time between a container's TERM and its KILL, whatever
	// pods ask for, unless KillPod is told a grace. Default 2 s.
	MinimumGrace time.Duration
	// CgroupParent is the cgroup below which pods are put; "" leaves it to the runtime.
	CgroupParent string
	// DNS is what pods with the policy ClusterFirst ask, and ClusterDomain what they search in.
	// Without DNS they are given the node's resolver.
	DNS           []string
	ClusterDomain string
	// ResolvConf is the file of the node's resolver. Without it the runtime knows it alone.
	ResolvConf string
	// KeepDead is how many dead instances of a container are kept while its pod lives.
	// Default 1; less than 0 keeps none.
	KeepDead int
}

// Deps are what a manager is built on. Recorder and Log may be nil, Metrics too;
// Now is time.Now by default.
type Deps struct {
	Recorder kube.EventRecorder
	Now      func() time.Time
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

func (c Config) withDefaults() Config {
	if c.PodsDir == "" && c.RootDir != "" {
		c.PodsDir = filepath.Join(c.RootDir, "pods")
	}
	c.CrashLoop = c.CrashLoop.withDefaults()
	c.ImagePull = c.ImagePull.withDefaults()
	c.ParallelPulls = cmp.Or(c.ParallelPulls, 5)
	c.MinimumGrace = cmp.Or(c.MinimumGrace, 2*time.Second)
	c.ClusterDomain = cmp.Or(c.ClusterDomain, "cluster.local")
	c.KeepDead = cmp.Or(c.KeepDead, 1)
	return c
}

// withDefaults keeps the first delay at or below the largest.
func (b Backoff) withDefaults() Backoff {
	b.Max = cmp.Or(b.Max, 300*time.Second)
	b.Initial = min(cmp.Or(b.Initial, 10*time.Second), b.Max)
	b.Reset = cmp.Or(b.Reset, 600*time.Second)
	return b
}

func (c Config) validate() error {
	var faults []error
	add := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	add(c.Node == "", "node: it is required")
	for name, dir := range map[string]string{"root dir": c.RootDir, "pods dir": c.PodsDir, "log root": c.LogRoot} {
		add(dir != "" && !filepath.IsAbs(dir), "%s: %q is not an absolute path", name, dir)
	}
	for name, b := range map[string]Backoff{"crash loop": c.CrashLoop, "image pull": c.ImagePull} {
		add(b.Initial < 0 || b.Max < 0 || b.Reset < 0, "%s: a time below zero: %v", name, b)
	}
	add(c.ParallelPulls < 0, "parallel pulls: %d is below zero", c.ParallelPulls)
	add(c.MinimumGrace < 0, "minimum grace: %v is below zero", c.MinimumGrace)
	return errors.Join(faults...)
}
