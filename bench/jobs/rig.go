package jobs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// nodes of each cluster have room for 110 pods each.
const nodes = 12

// ourServers and besideServers are API server and etcd of each cluster.
const (
	ourServers    = "our API server and etcd"
	besideServers = "API server and etcd of the manager"
)

// otherManager is the kube-controller-manager of our cluster, without its Job controller.
const otherManager = "the other manager"

// gather is how long our reflector gathers changes that follow closely: nobody waits for a pod's
// next change, as the syncs that it leads to come a second later.
const gather = 50 * time.Millisecond

// rig is two clusters, one with kube-controller-manager's Job controller and one with ours.
type rig struct {
	bench        *harness.Bench
	ours, beside *cluster
	plane        *plane.Plane
	alone        *harness.Child     // all of ours, once it is in one process
	resting      map[string]float64 // of a second, the CPU that each part takes while nothing happens
}

type cluster struct {
	*system.TestCluster
	kube  *kube.Client
	turns int
}

// newRig returns a rig that is to be closed also when there is an error.
func newRig(ctx context.Context, b *harness.Bench) (r *rig, err error) {
	r = &rig{bench: b}
	if r.ours, err = newCluster(ctx, b, "ours"); err != nil {
		return r, err
	}
	const all = "garbage-collector-controller,serviceaccount-controller,serviceaccount-token-controller,namespace-controller,job-controller"
	if r.beside, err = newCluster(ctx, b, "manager", "--controllers", all); err != nil {
		return r, err
	}
	r.plane, err = plane.StartPlane(ctx, b, "jobs", r.config())
	return r, err
}

func (r *rig) config() plane.PlaneConfig {
	return plane.PlaneConfig{Kubeconfig: r.ours.Kubeconfig(), Grace: time.Minute, Gather: gather}
}

// unite replaces the processes of ours by one, as `deltaplane up` is.
func (r *rig) unite(ctx context.Context) error {
	p := r.plane
	r.plane = nil
	if err := p.Close(); err != nil {
		return err
	}
	cfg := r.config()
	cfg.Controllers, cfg.Identity, cfg.Rate = []string{"job"}, "bench", 1
	var err error
	r.alone, err = plane.StartAlone(ctx, r.bench, "alone", cfg)
	return err
}

func newCluster(ctx context.Context, b *harness.Bench, name string, args ...string) (c *cluster, err error) {
	c = &cluster{}
	if c.TestCluster, err = system.BareCluster(ctx, b, filepath.Join(b.Dir, "kube-"+name), append(args, "--nodes", strconv.Itoa(nodes))...); err != nil {
		return nil, err
	}
	c.kube, err = kube.Load(kube.Config{Kubeconfig: c.Kubeconfig()})
	return c, err
}

func (r *rig) close() (err error) {
	if r.plane != nil {
		err = r.plane.Close()
	}
	if r.alone != nil {
		err = errors.Join(err, r.alone.Stop())
	}
	for _, c := range []*cluster{r.ours, r.beside} {
		if c != nil {
			if c.kube != nil {
				c.kube.Close()
			}
			err = errors.Join(err, c.Down())
		}
	}
	return err
}

// usage is the CPU that each part has used.
func (r *rig) usage() (map[string]time.Duration, error) {
	used := map[string]time.Duration{}
	var errs []error
	add := func(part string, c *harness.Child) {
		u, err := c.Usage()
		errs = append(errs, err)
		used[part] += u.CPU
	}
	for _, p := range r.children() {
		add(p.part, p.child)
	}
	for _, p := range []struct {
		part    string
		of      *cluster
		program string
	}{
		{besideBy, r.beside, "kube-controller-manager"},
		{otherManager, r.ours, "kube-controller-manager"},
		{besideServers, r.beside, "kube-apiserver"},
		{besideServers, r.beside, "etcd"},
		{ourServers, r.ours, "kube-apiserver"},
		{ourServers, r.ours, "etcd"},
	} {
		cpu, err := harness.ProcessCPU(p.of.PID(p.program))
		errs = append(errs, err)
		used[p.part] += cpu
	}
	return used, errors.Join(errs...)
}

// restFor is how long nothing happens while the parts are looked at.
const restFor = 20 * time.Second

// rest measures what each part takes while nothing happens, with one replica of workers.
func (r *rig) rest(ctx context.Context) (err error) {
	if err := r.plane.Control(ctx, 1, 1, "job"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.plane.Release()) }()
	if err := harness.Sleep(ctx, restFor/4); err != nil { // what has just started is not at rest
		return err
	}
	before, err := r.usage()
	if err != nil {
		return err
	}
	if err := harness.Sleep(ctx, restFor); err != nil {
		return err
	}
	after, err := r.usage()
	r.resting = map[string]float64{}
	for part, used := range after {
		r.resting[part] = (used - before[part]).Seconds() / restFor.Seconds()
	}
	return err
}

// child is a process of ours.
type child struct {
	part  string
	child *harness.Child
}

func (r *rig) children() (all []child) {
	if r.alone != nil {
		all = append(all, child{together, r.alone})
	}
	if r.plane == nil {
		return all
	}
	for _, part := range parts {
		all = append(all, child{part, r.plane.Parts[part]})
	}
	for _, c := range r.plane.Workers {
		all = append(all, child{workers, c})
	}
	return all
}

// profiled runs work with a CPU profile of each part of ours, when it is a turn of ours.
func (r *rig) profiled(side string, work func() error) error {
	if side == besideBy {
		return work()
	}
	for _, p := range r.children() {
		inner := work
		work = func() error { return r.bench.Profiled(p.child, "jobs-"+p.part, inner) }
	}
	return work()
}

const namespace = "default"

// createdAtOnce are the Jobs that are created at the same time.
const createdAtOnce = 8

// run creates Jobs and waits until all are complete. It returns how long that took, and how long
// each Job took, in order.
func (c *cluster) run(ctx context.Context, jobs, pods int) (took time.Duration, each []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	c.turns++
	page, err := c.kube.List(ctx, kube.Jobs, kube.ListOptions{Scope: kube.Scope{Namespace: namespace}})
	if err != nil {
		return 0, nil, err
	}
	w, err := c.kube.Watch(ctx, kube.Jobs, kube.WatchOptions{Scope: kube.Scope{Namespace: namespace}, RV: page.RV})
	if err != nil {
		return 0, nil, err
	}
	defer w.Close()
	began := time.Now()
	at := make([]time.Time, jobs) // of creation
	var all errgroup.Group
	all.SetLimit(createdAtOnce)
	created := make(chan error, 1)
	go func() {
		for i := range jobs {
			all.Go(func() error {
				at[i] = time.Now()
				return c.create(ctx, i, pods)
			})
		}
		created <- all.Wait()
	}()
	done := map[string]time.Time{}
	for len(done) < jobs {
		e, err := w.Next()
		if err != nil {
			return 0, nil, errors.Join(err, ctx.Err())
		}
		if name, complete := completed(e.Object); complete && done[name].IsZero() {
			done[name] = time.Now()
		}
	}
	if err := <-created; err != nil {
		return 0, nil, err
	}
	for i, from := range at {
		each = append(each, done[c.name(i)].Sub(from))
	}
	slices.Sort(each)
	return time.Since(began), each, nil
}

func (c *cluster) name(i int) string { return fmt.Sprintf("turn-%d-%d", c.turns, i) }

func completed(job []byte) (name string, complete bool) {
	return gjson.GetBytes(job, "metadata.name").Str, gjson.GetBytes(job, `status.conditions.#(type=="Complete").status`).Str == "True"
}

func (c *cluster) create(ctx context.Context, i, pods int) error {
	body := fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%q},"spec":{"parallelism":%[2]d,"completions":%[2]d,"template":{
		"spec":{"restartPolicy":"Never","terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}}}`, c.name(i), pods)
	_, err := c.kube.Create(ctx, kube.Ref{Resource: kube.Jobs, Namespace: namespace}, []byte(body), kube.WriteOptions{})
	return err
}

// clear deletes what a turn has left, and waits until it is gone.
func (c *cluster) clear(ctx context.Context) error {
	for _, r := range []kube.Resource{kube.Jobs, kube.Pods} {
		page, err := c.kube.List(ctx, r, kube.ListOptions{Scope: kube.Scope{Namespace: namespace}})
		if err != nil {
			return err
		}
		var all errgroup.Group
		all.SetLimit(createdAtOnce)
		for _, item := range page.Items {
			all.Go(func() error {
				_, err := c.kube.Delete(ctx, r.Ref(namespace, gjson.GetBytes(item, "metadata.name").Str), kube.DeleteOptions{Propagation: kube.Background})
				if kube.IsNotFound(err) {
					return nil
				}
				return err
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
	}
	return harness.Await(ctx, 2*time.Minute, "pods of a turn are left", func() (bool, error) {
		page, err := c.kube.List(ctx, kube.Pods, kube.ListOptions{Scope: kube.Scope{Namespace: namespace}})
		return len(page.Items) == 0, err
	})
}
