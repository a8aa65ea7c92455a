package testing

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/services/reflector"
)

// Config says what an [Env] has, and what it does to the code under test. The zero value
// is an environment that does nothing to it.
type Config struct {
	// Seed makes the environment adverse, see the package's documentation. 0: it is not.
	// [Run] counts its seeds from this one.
	Seed uint64
	// Resources are mirrored, each named as in "deltaplane up --resources": "configmaps",
	// "widgets.example.com", "leases.coordination.k8s.io/kube-node-lease". Default: those of
	// "deltaplane up", which are pods, nodes, jobs and the leases of nodes.
	Resources []string
	// DropFields are the paths of the fields that are left out of objects, by the resource as
	// Resources names it: {"pods": {"status.conditions"}}.
	DropFields map[string][]string
	// Objects are there before anything is mirrored, created in this order: the
	// CustomResourceDefinitions of Resources, namespaces. Each is as in [Env.Apply].
	Objects []any
	// Rates say how often what happens. Only with a Seed.
	Rates Rates
	// Lag is how far the index replica is behind that answers stale reads; default 150 ms.
	Lag time.Duration
	// Log receives what the services log. Default: nowhere.
	Log io.Writer
}

// Rates are the shares of calls, or of keys, that something is done to, from 0 to 1. A
// field that is zero has the default; below zero it never happens.
type Rates struct {
	// StaleReads are index reads and watches answered by a replica that lags. Default 0.3.
	StaleReads float64
	// FailedReads are index reads that fail: with UNAVAILABLE, or, where they ask for a
	// least revision, with REVISION_NOT_REACHED. Default 0.03.
	FailedReads float64
	// BrokenStreams are events of a watch, settlements and adds at which the connection
	// breaks, so that nobody can tell whether they arrived. Default 0.02.
	BrokenStreams float64
	// DuplicateKeys are settled keys that are added once more. Default 0.1.
	DuplicateKeys float64
	// LateKeys are adds that arrive up to 100 ms late. Default 0.1.
	LateKeys float64
	// LostLeases are leases that are lost within 20 ms: the context of the reconcile ends,
	// and another worker gets the key. Default 0.05.
	LostLeases float64
	// KilledWorkers are leases that are lost when they are to be settled: the key runs again
	// and nobody knows what the run read and wrote. Default 0.05.
	KilledWorkers float64
	// Conflicts are conditional writes that the API server refuses with 409. Default 0.05.
	Conflicts float64
	// LostAnswers are writes that the API server carries out without the caller getting the
	// answer: 504, or the connection breaks. Default 0.05.
	LostAnswers float64
	// RefusedCalls are calls that the API server does not carry out: 503, or the connection
	// breaks. Default 0.03.
	RefusedCalls float64
}

// of is the rate of each kind.
func (r Rates) of() map[kind]float64 {
	return map[kind]float64{
		staleRead: r.StaleReads, failedRead: r.FailedReads, brokenStream: r.BrokenStreams,
		duplicateKey: r.DuplicateKeys, lateKey: r.LateKeys, lostLease: r.LostLeases, killedWorker: r.KilledWorkers,
		conflict: r.Conflicts, lostAnswer: r.LostAnswers, refusedCall: r.RefusedCalls,
	}
}

func (r Rates) withDefaults() Rates {
	return Rates{
		StaleReads: cmp.Or(r.StaleReads, 0.3), FailedReads: cmp.Or(r.FailedReads, 0.03), BrokenStreams: cmp.Or(r.BrokenStreams, 0.02),
		DuplicateKeys: cmp.Or(r.DuplicateKeys, 0.1), LateKeys: cmp.Or(r.LateKeys, 0.1),
		LostLeases: cmp.Or(r.LostLeases, 0.05), KilledWorkers: cmp.Or(r.KilledWorkers, 0.05),
		Conflicts: cmp.Or(r.Conflicts, 0.05), LostAnswers: cmp.Or(r.LostAnswers, 0.05), RefusedCalls: cmp.Or(r.RefusedCalls, 0.03),
	}
}

func (c Config) withDefaults() Config {
	c.Rates = c.Rates.withDefaults()
	c.Lag = cmp.Or(c.Lag, 150*time.Millisecond)
	if c.Log == nil {
		c.Log = io.Discard
	}
	return c
}

// validate reports every fault of c together.
func (c Config) validate() error {
	var faults []error
	for kind, rate := range c.Rates.of() {
		if rate > 1 {
			faults = append(faults, fmt.Errorf("rate of %s %v is above 1", kind.plural(), rate))
		}
	}
	if c.Lag < 0 {
		faults = append(faults, fmt.Errorf("lag %v is negative", c.Lag))
	}
	for _, name := range c.Resources {
		if name == "*" {
			faults = append(faults, errors.New(`resource "*": name each resource, so that it is known when all are mirrored`))
		}
	}
	for name := range c.DropFields {
		if !slices.Contains(c.Resources, name) {
			faults = append(faults, fmt.Errorf("drop fields: resource %q is not one of Resources", name))
		}
	}
	_, err := c.mirrored()
	return errors.Join(append(faults, err)...)
}

// mirrored are the resources that the reflector mirrors.
func (c Config) mirrored() ([]reflector.Resource, error) {
	if len(c.Resources) == 0 {
		return reflector.DefaultResources(), nil
	}
	var all []reflector.Resource
	for _, name := range c.Resources {
		r, err := reflector.ParseResource(name)
		if err != nil {
			return nil, err
		}
		r.Transform.Drop = c.DropFields[name]
		all = append(all, r)
	}
	return all, nil
}
