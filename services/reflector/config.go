package reflector

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// Config says what to mirror and how. The zero value mirrors pods, nodes, jobs and the node leases
// of the cluster "dev".
type Config struct {
	// RPC is where the ReflectorService listens.
	RPC rpc.ServerConfig
	// Admin is where metrics, readiness and profiles are served.
	Admin telemetry.AdminConfig
	// Access says who decides what callers may do. Default: every caller may do everything.
	Access authority.Config
	// Cluster is the name that the collections of the API server given to [New] carry; default "dev".
	Cluster string
	// Clusters are mirrored beside it. One that cannot be reached holds no other back. The same API
	// server under two names is two clusters: it is listed and watched twice, and each name has
	// collections, and so scopes, of its own.
	Clusters []Cluster
	// Resources to mirror, without a cluster in all of them; default [DefaultResources].
	Resources []Resource
	// KeepManagedFields mirrors metadata.managedFields of all Resources.
	KeepManagedFields bool
	// MirrorSecrets lets secrets be mirrored, which then are to be named: "*" leaves them out. The log
	// must encrypt them.
	MirrorSecrets bool
	// MaxAdded is how many reflections AddReflection may add to a cluster; default 500.
	MaxAdded int
	// Holder names this process in leases and term records; default random. Replicas must differ.
	Holder string

	// PageSize of lists. 0 means 500 where the server's cache does not serve the list; any other
	// value forces pages of that size.
	PageSize int
	// WatchList says how the whole state is read; default [WatchListAuto].
	WatchList WatchList
	// WatchListTimeout is how long a streaming start may go without an object and without its end
	// before the collection is listed instead; default 30 s, with a warning each third of it.
	WatchListTimeout time.Duration
	// QuietAfter is how long a watch may be silent before the API server is asked whether it has
	// reached the watch's version at all; default 2 min.
	QuietAfter time.Duration
	// Backoff of failing lists and watches.
	Backoff Backoff
	// MinWatchTimeout: watches last between it and twice as long; default and least 5 min.
	MinWatchTimeout time.Duration
	// StageBytes bounds the changes that wait for a slow log before they are coalesced; default 64 MiB
	// for each collection.
	StageBytes int
	// Gather is how long after some changes of a collection were published those that follow are
	// gathered: they make one batch, which costs the reflector, the log and its readers less than
	// each by itself, and come up to so much later. A change after a pause is published at once, and
	// so is what fills a batch (512 records, 4 MiB or half of StageBytes) or ends a list. At most 1 s;
	// default 0 gathers nothing.
	Gather time.Duration
	// LivenessEvery is the period of liveness records; default 2 s. What is judged by silence is
	// known no finer than that.
	LivenessEvery time.Duration
	// LeaseTTL is how long a leader keeps a collection without renewing its lease; default 3 s. All
	// replicas must use the same.
	LeaseTTL time.Duration
	// LeasePingTimeout is how long a leader may leave the pings of standbys unanswered, as when its
	// process is stopped; default a third of LeaseTTL, and at most that. A leader whose connection to
	// NATS is gone is not waited for.
	LeasePingTimeout time.Duration
	// DiscoverEvery is how often "*" and resources that are not served yet are looked for; default 30
	// s.
	DiscoverEvery time.Duration
	// KeepVanished is for how long the log of a collection is kept that "*" had found and the API
	// server serves no more, as when its CustomResourceDefinition was deleted; default 1 h. Then the
	// log is deleted, and its readers are notified.
	KeepVanished time.Duration
}

// mostGather is below what a reader takes for silence.
const mostGather = time.Second

// Cluster is one more API server.
type Cluster struct {
	// Name is the first part of its collections' names.
	Name string
	// Kube is its client.
	Kube *kube.Client
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
	c.RPC = c.Access.Applied(c.RPC)
	c.Cluster = cmp.Or(c.Cluster, "dev")
	if len(c.Resources) == 0 {
		c.Resources = DefaultResources()
	}
	c.Resources = c.everywhere()
	c.MaxAdded = cmp.Or(c.MaxAdded, 500)
	c.KeepVanished = cmp.Or(c.KeepVanished, time.Hour)
	c.Holder = cmp.Or(c.Holder, "reflector-"+strings.ToLower(rand.Text()[:10]))
	c.WatchList = cmp.Or(c.WatchList, WatchListAuto)
	c.QuietAfter = cmp.Or(c.QuietAfter, 2*time.Minute)
	c.WatchListTimeout = cmp.Or(c.WatchListTimeout, 30*time.Second)
	c.Backoff = c.Backoff.withDefaults()
	c.MinWatchTimeout = max(c.MinWatchTimeout, 5*time.Minute)
	c.StageBytes = cmp.Or(c.StageBytes, 64<<20)
	c.LivenessEvery = cmp.Or(c.LivenessEvery, 2*time.Second)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 3*time.Second)
	c.LeasePingTimeout = cmp.Or(c.LeasePingTimeout, c.LeaseTTL/3)
	c.DiscoverEvery = cmp.Or(c.DiscoverEvery, 30*time.Second)
	return c
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.RPC.Validate(), c.Access.Validate(c.RPC.Auth), c.Admin.Validate(), c.Backoff.validate(), c.WatchList.validate()}
	errs = append(errs, c.checkClusters(), c.checkResources())
	if c.MaxAdded < 0 {
		errs = append(errs, fmt.Errorf("reflector: max added %d: must not be negative", c.MaxAdded))
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
	}{
		{"watch-list timeout", c.WatchListTimeout},
		{"quiet period", c.QuietAfter},
		{"liveness period", c.LivenessEvery},
		{"lease ttl", c.LeaseTTL},
		{"lease ping timeout", c.LeasePingTimeout},
		{"discovery period", c.DiscoverEvery},
		{"time to keep vanished", c.KeepVanished},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("reflector: %s %v: must not be negative", d.name, d.value))
		}
	}
	if c.Gather < 0 || c.Gather > mostGather {
		errs = append(errs, fmt.Errorf("reflector: time to gather %v: must be within 0 and %v", c.Gather, mostGather))
	}
	if c.LeasePingTimeout > c.LeaseTTL {
		errs = append(errs, fmt.Errorf("reflector: lease ping timeout %v: must not exceed the lease ttl %v", c.LeasePingTimeout, c.LeaseTTL))
	}
	return errors.Join(errs...)
}

// everywhere are the resources with those that name no cluster once for each.
func (c Config) everywhere() []Resource {
	var out []Resource
	for _, r := range c.Resources {
		r.Transform.KeepManagedFields = r.Transform.KeepManagedFields || c.KeepManagedFields
		if r.Cluster != "" {
			out = append(out, r)
			continue
		}
		for _, name := range c.clusterNames() {
			r.Cluster = name
			out = append(out, r)
		}
	}
	return out
}

func (c Config) clusterNames() []string {
	names := []string{c.Cluster}
	for _, one := range c.Clusters {
		names = append(names, one.Name)
	}
	return names
}

func (c Config) checkClusters() error {
	var errs []error
	names := map[string]bool{}
	for _, name := range c.clusterNames() {
		if err := checkCluster(name); err != nil {
			errs = append(errs, fmt.Errorf("reflector: cluster %w", err))
		} else if names[name] {
			errs = append(errs, fmt.Errorf("reflector: cluster %q is named twice", name))
		}
		names[name] = true
	}
	for _, one := range c.Clusters {
		if one.Kube == nil {
			errs = append(errs, fmt.Errorf("reflector: cluster %q has no client", one.Name))
		}
	}
	return errors.Join(errs...)
}

func (c Config) checkResources() error {
	var errs []error
	names, wrong := map[string]bool{}, map[string]bool{}
	clusters := c.clusterNames()
	for _, r := range c.Resources {
		if !slices.Contains(clusters, r.Cluster) {
			errs = append(errs, fmt.Errorf("reflector: resource %q: cluster %q is not one of %s", r.Name, r.Cluster, strings.Join(clusters, ", ")))
		}
		if r.secrets() && !c.MirrorSecrets && !wrong[errSecrets.Error()] {
			wrong[errSecrets.Error()] = true
			errs = append(errs, fmt.Errorf("reflector: resource %q: %w", r.String(), errSecrets))
		}
		anywhere := r
		anywhere.Cluster = ""
		if err := anywhere.validate(); err != nil && !wrong[err.Error()] { // once, however many clusters it is for
			wrong[err.Error()] = true
			errs = append(errs, err)
		}
		if names[r.String()] {
			errs = append(errs, fmt.Errorf("reflector: resource %q is named twice; a resource has one scope", r.String()))
		}
		names[r.String()] = true
	}
	return errors.Join(errs...)
}
