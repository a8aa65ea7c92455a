package reflector

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// Config says what to mirror and how. The zero value mirrors pods, nodes, jobs and the node leases of the cluster "dev".
type Config struct {
	// RPC is where the ReflectorService listens.
	RPC rpc.ServerConfig
	// Admin is where metrics, readiness and profiles are served.
	Admin telemetry.AdminConfig
	// Cluster is the name the collections carry; default "dev".
	Cluster string
	// Resources to mirror; default [DefaultResources].
	Resources []Resource
	// Holder names this process in leases and term records; default random. Replicas must differ.
	Holder string

	// PageSize of lists. 0 means 500 where the server's cache does not serve the list; any other value forces pages of that size.
	PageSize int
	// Backoff of failing lists and watches.
	Backoff Backoff
	// MinWatchTimeout: watches last between it and twice as long; default and least 5 min.
	MinWatchTimeout time.Duration
	// StageBytes bounds the changes that wait for a slow log before they are coalesced; default 64 MiB for each collection.
	StageBytes int
	// LivenessEvery is the period of liveness records; default 2 s. What is judged by silence is
	// known no finer than that.
	LivenessEvery time.Duration
	// LeaseTTL is how long a leader keeps a collection without renewing its lease; default 3 s. All replicas must use the same.
	LeaseTTL time.Duration
	// LeasePatience is how long a leader may leave the pings of standbys unanswered, as when its process is stopped; default a third of
	// LeaseTTL, and at most that. A leader whose connection to NATS is gone is not waited for.
	LeasePatience time.Duration
	// DiscoverEvery is how often "*" and resources that are not served yet are looked for; default 30 s.
	DiscoverEvery time.Duration
}

// DefaultResources are mirrored when none are named.
func DefaultResources() []Resource {
	return []Resource{
		{Name: "pods.v1"},
		{Name: "nodes.v1"},
		{Name: "jobs.v1.batch"},
		{Name: "leases.v1.coordination.k8s.io", Scope: kube.Scope{Namespace: "kube-node-lease"}},
	}
}

func (c Config) withDefaults() Config {
	c.Cluster = cmp.Or(c.Cluster, "dev")
	if len(c.Resources) == 0 {
		c.Resources = DefaultResources()
	}
	c.Resources = slices.Clone(c.Resources)
	c.Holder = cmp.Or(c.Holder, "reflector-"+strings.ToLower(rand.Text()[:10]))
	c.Backoff = c.Backoff.withDefaults()
	c.MinWatchTimeout = max(c.MinWatchTimeout, 5*time.Minute)
	c.StageBytes = cmp.Or(c.StageBytes, 64<<20)
	c.LivenessEvery = cmp.Or(c.LivenessEvery, 2*time.Second)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 3*time.Second)
	c.LeasePatience = cmp.Or(c.LeasePatience, c.LeaseTTL/3)
	c.DiscoverEvery = cmp.Or(c.DiscoverEvery, 30*time.Second)
	return c
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.RPC.Validate(), c.Admin.Validate(), c.Backoff.validate()}
	if err := checkCluster(c.Cluster); err != nil {
		errs = append(errs, fmt.Errorf("reflector: cluster %w", err))
	}
	names := map[string]bool{}
	for _, r := range c.Resources {
		errs = append(errs, r.validate())
		if names[r.Name] {
			errs = append(errs, fmt.Errorf("reflector: resource %q is named twice; a resource has one scope", r.Name))
		}
		names[r.Name] = true
	}
	if c.PageSize < 0 {
		errs = append(errs, fmt.Errorf("reflector: page size %d: must not be negative", c.PageSize))
	}
	if c.StageBytes < 0 {
		errs = append(errs, fmt.Errorf("reflector: stage bytes %d: must not be negative", c.StageBytes))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"liveness period", c.LivenessEvery}, {"lease ttl", c.LeaseTTL}, {"lease patience", c.LeasePatience}, {"discovery period", c.DiscoverEvery}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("reflector: %s %v: must not be negative", d.name, d.value))
		}
	}
	if c.LeasePatience > c.LeaseTTL {
		errs = append(errs, fmt.Errorf("reflector: lease patience %v: must not exceed the lease ttl %v", c.LeasePatience, c.LeaseTTL))
	}
	return errors.Join(errs...)
}
