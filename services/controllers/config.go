package controllers

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers/admission"
)

// Config says which controllers run and how. Its zero value runs the default
// ones for the cluster "dev".
type Config struct {
	// Cluster is the cluster's name in collections and queues. Default "dev".
	Cluster string
	// Controllers are the names of those to run. Default: those of [Defaults].
	Controllers []string
	// Concurrency is how many keys each controller works on at once. Default 8.
	Concurrency int
	// Prefetch is how many further keys each leases ahead. Default 0.
	Prefetch int
	// Lease is the lease duration asked for, 1 s to 1 h. Default: the queue's, 30 s.
	Lease time.Duration
	// Timeout bounds one reconcile. Default 5 min.
	Timeout time.Duration
	// Grace is how long reconciles may go on once the service stops. Default 20 s.
	Grace time.Duration
	// Resync is the time between two rounds over every key. Default 10 h, −1 for none.
	Resync time.Duration
	// Check is how often the queue's generation is asked for. Default 10 s.
	Check time.Duration
	// Partitions of a queue that does not exist yet. Default 1.
	Partitions int
	// Identity names this replica to people, in the queue's sessions and as the
	// source of Kubernetes Events. Default: the host name.
	Identity string
	// Nodes are the numbers of the node lifecycle controller.
	Nodes nodelifecycle.Rules
	// PodGC are the numbers of the pod garbage collection.
	PodGC podgc.Rules
	// Taints are the rules by which tolerations match, for taint eviction.
	Taints taint.Rules
	// Admission, when set, serves the webhook of the default tolerations.
	Admission *admission.Config
	// Admin is where metrics, readiness and profiles are served.
	Admin telemetry.AdminConfig
}

// Names are the controllers there are, sorted.
func Names() []string {
	names := make([]string, 0, len(builders))
	for name := range builders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Defaults are the controllers that run when nobody names any.
func Defaults() []string { return []string{"job"} }

func (c Config) withDefaults() Config {
	c.Cluster = cmp.Or(c.Cluster, "dev")
	if len(c.Controllers) == 0 {
		c.Controllers = Defaults()
	}
	c.Concurrency = cmp.Or(c.Concurrency, 8)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Minute)
	c.Grace = cmp.Or(c.Grace, 20*time.Second)
	c.Partitions = cmp.Or(c.Partitions, 1)
	if c.Identity == "" {
		c.Identity, _ = os.Hostname()
		c.Identity = cmp.Or(c.Identity, "deltaplane")
	}
	return c
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	c = c.withDefaults()
	faults := []error{c.Admin.Validate()}
	fault := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("controllers: "+format, args...))
		}
	}
	if err := jobsOf(c.Cluster).Validate(); err != nil {
		faults = append(faults, fmt.Errorf("controllers: cluster %q: %w", c.Cluster, err))
	}
	seen := map[string]bool{}
	for _, name := range c.Controllers {
		fault(builders[name] != nil, "no controller is called %q; there are %s", name, strings.Join(Names(), ", "))
		fault(!seen[name], "controller %q is named twice", name)
		seen[name] = true
	}
	fault(c.Concurrency > 0 && c.Prefetch >= 0 && c.Concurrency+c.Prefetch <= 10_000, "concurrency %d with prefetch %d is not within 1 and 10000", c.Concurrency, c.Prefetch)
	fault(c.Lease == 0 || c.Lease >= time.Second && c.Lease <= time.Hour, "lease %v is not within 1s and 1h", c.Lease)
	fault(c.Timeout > 0 && c.Grace > 0, "timeout %v and grace %v must be above zero", c.Timeout, c.Grace)
	fault(c.Check >= 0, "check %v is negative", c.Check)
	fault(c.Partitions >= 1 && c.Partitions <= 1024, "partitions %d is not within 1 and 1024", c.Partitions)
	faults = append(faults, c.Nodes.Validate(), c.PodGC.Validate())
	if c.Admission != nil {
		faults = append(faults, c.Admission.Validate())
	}
	return errors.Join(faults...)
}

func jobsOf(cluster string) delta.Collection {
	return delta.Collection{Cluster: cluster, Group: "batch", Version: "v1", Resource: "jobs"}
}

func podsOf(cluster string) delta.Collection {
	return delta.Collection{Cluster: cluster, Version: "v1", Resource: "pods"}
}
