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

// otherManager is the kube-controller-manager of our cluster, without its Job controller.
const otherManager = "the other manager"

// rig is two clusters, one with kube-controller-manager's Job controller and one with ours.
type rig struct {
	bench        *harness.Bench
	ours, beside *cluster
	plane        *plane.Plane
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
	r.plane, err = plane.StartPlane(ctx, b, "jobs", plane.PlaneConfig{Kubeconfig: r.ours.Kubeconfig(), Grace: time.Minute})
	return r, err
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
	for _, part := range parts {
		add(part, r.plane.Parts[part])
	}
	used[workers] = 0
	for _, c := range r.plane.Workers {
		add(workers, c)
	}
	for name, c := range map[string]*cluster{besideBy: r.beside, otherManager: r.ours} {
		cpu, err := harness.ProcessCPU(c.PID("kube-controller-manager"))
		errs = append(errs, err)
		used[name] = cpu
	}
	return used, errors.Join(errs...)
}

// profiled runs work with a CPU profile of each part of ours, when it is a turn of ours.
func (r *rig) profiled(side string, work func() error) error {
	if side == besideBy {
		return work()
	}
	for _, part := range parts {
		inner := work
		work = func() error { return r.bench.Profiled(r.plane.Parts[part], "jobs-"+part, inner) }
	}
	for _, c := range r.plane.Workers {
		inner := work
		work = func() error { return r.bench.Profiled(c, "jobs-"+workers, inner) }
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
