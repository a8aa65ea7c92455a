package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
)

// Family is the figures of Jobs.
func Family() harness.Family {
	return harness.Family{
		Name: "jobs", About: "Jobs on real API servers with simulated nodes, beside kube-controller-manager",
		Parts: []harness.Part{{Name: "beside", Run: besideManager}},
	}
}

const (
	ours     = "ours"
	three    = "ours, 3 replicas"
	single   = "ours, one process"
	besideBy = "kube-controller-manager"
)

// besideManager runs many Jobs on each cluster in turn, then few, and compares how quick they are
// and what CPU the controllers take.
func besideManager(ctx context.Context, b *harness.Bench) (err error) {
	const what = "Jobs beside kube-controller-manager"
	if b.Quick {
		b.LeaveOut(what, "--quick; it takes some minutes")
		return nil
	}
	r, err := newRig(ctx, b)
	if errors.Is(err, system.ErrNoCluster) {
		b.LeaveOut(what, err.Error())
		return nil
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err != nil {
		return err
	}
	b.Note("jobs: Kubernetes 1.36 on two clusters of test/kube, %d simulated nodes each, without client-side limits; the CPU of ours is of log, reflector, index, queue and workers, a process each, that of the manager includes its garbage collector, which runs beside ours too; our reflector gathers changes for %v", nodes, gather)
	if err := r.rest(ctx); err != nil {
		return err
	}
	many, err := harness.Interleave(ctx, b, harness.Plan{What: "many", Rounds: 5, Turn: time.Second, Rotate: true},
		r.side(ours, 1, 100, 10), r.side(besideBy, 0, 100, 10), r.side(three, 3, 100, 10))
	if err != nil {
		return err
	}
	few, err := harness.Interleave(ctx, b, harness.Plan{What: "few", Rounds: 5, Turn: time.Second, Rotate: true},
		r.side(ours, 1, 20, 5), r.side(besideBy, 0, 20, 5))
	if err != nil {
		return err
	}
	if err := r.unite(ctx); err != nil {
		return err
	}
	one, err := harness.Interleave(ctx, b, harness.Plan{What: "one process", Rounds: 5, Turn: time.Second, Rotate: true},
		r.side(single, 0, 100, 10), r.side(besideBy, 0, 100, 10))
	if err != nil {
		return err
	}
	b.Note("jobs: a turn is one population of Jobs, from the first creation until the last is complete, whatever its length; foreign CPU includes that of the API servers, etcd and the simulated nodes")
	b.Add(harness.Compare("100 Jobs of 10 pods", "pods/s", many.Of(ours, "rate"), besideBy, many.Of(besideBy, "rate"), harness.AtLeast("ratio", 1)))
	b.Add(harness.Compare("100 Jobs of 10 pods, 3 replicas", "pods/s", many.Of(three, "rate"), besideBy, many.Of(besideBy, "rate"), harness.AtLeast("ratio", 1)))
	cpu := harness.Compare("100 Jobs of 10 pods, CPU for a thousand pods", "s", many.Of(ours, "cpu"), besideBy, many.Of(besideBy, "cpu"), harness.AtMost("ratio", 2))
	for _, part := range append(slices.Clone(parts), workers) {
		cpu = cpu.With(part, "s", many.Of(ours, part))
	}
	cpu = cpu.With("the manager beside ours", "s", many.Of(ours, otherManager))
	b.Add(cpu)
	b.Add(harness.Compare("the same, less what the processes take of that time while nothing happens", "s", many.Of(ours, "net"), besideBy, many.Of(besideBy, "net"), nil))
	b.Add(harness.Compare("the same, CPU of API server and etcd", "s", many.Of(ours, ourServers), besideBy, many.Of(besideBy, besideServers), nil))
	b.Add(harness.Compare("100 Jobs of 10 pods, all of ours in one process", "pods/s", one.Of(single, "rate"), besideBy, one.Of(besideBy, "rate"), nil))
	b.Add(harness.Compare("100 Jobs of 10 pods, all of ours in one process, CPU for a thousand pods", "s", one.Of(single, "cpu"), besideBy, one.Of(besideBy, "cpu"), nil))
	b.Add(harness.Compare("20 Jobs of 5 pods, from creation to complete, p50", "s", few.Of(ours, "p50"), besideBy, few.Of(besideBy, "p50"), harness.AtMost("ratio", 1)))
	return nil
}

// parts are what the CPU of ours is of, besides the workers.
var parts = []string{"nats", "reflector", "indexer", "queue"}

const (
	workers  = "workers"
	together = "one process" // in the place of all of them
)

// side runs a population of Jobs in each turn, with so many replicas of workers of ours, or without
// any on the manager's cluster.
func (r *rig) side(name string, replicas, jobs, pods int) harness.Side {
	return harness.Side{Name: name, Run: func(ctx context.Context, _ time.Duration) (_ map[string]float64, err error) {
		on, counted := r.beside, []string{besideBy}
		switch {
		case name == single:
			on, counted = r.ours, []string{together}
		case replicas > 0:
			on, counted = r.ours, append(slices.Clone(parts), workers)
			if err := r.plane.Control(ctx, replicas, 1, "job"); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, r.plane.Release()) }()
		}
		before, err := r.usage()
		if err != nil {
			return nil, err
		}
		var took time.Duration
		var each []time.Duration
		err = r.profiled(name, func() (err error) {
			took, each, err = on.run(ctx, jobs, pods)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		after, err := r.usage()
		if err != nil {
			return nil, err
		}
		thousand := float64(jobs*pods) / 1000
		got := map[string]float64{"rate": float64(jobs*pods) / took.Seconds(), "p50": each[len(each)/2].Seconds()}
		for part, used := range after {
			got[part] = (used - before[part]).Seconds() / thousand
		}
		for _, part := range counted {
			got["cpu"] += got[part]
			got["net"] += got[part] - r.resting[part]*took.Seconds()/thousand
		}
		return got, on.clear(ctx)
	}}
}
