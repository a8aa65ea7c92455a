package traces

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// rig is all of Deltaplane beside a dev cluster of its own with suspended Jobs.
type rig struct {
	plane     *plane.Plane
	collector *collector
	jobs      int
	suspended bool
}

func newRig(ctx context.Context, b *harness.Bench, name string, ratio float64, jobs int) (r *rig, err error) {
	r = &rig{jobs: jobs, suspended: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.collector, err = newCollector(); err != nil {
		return r, err
	}
	cfg := plane.PlaneConfig{OTLP: r.collector.url, TraceRatio: ratio, Grace: time.Minute}
	if r.plane, err = plane.StartPlane(ctx, b, name, cfg); err != nil {
		return r, err
	}
	if err := r.plane.Control(ctx, 1, 1, "job"); err != nil {
		return r, err
	}
	return r, r.until(ctx, func(ctx context.Context, i int) error {
		body := fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%q},"spec":{"suspend":true,"parallelism":0,"completions":1,
			"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`, nameOf(i))
		_, err := r.plane.Kube.Create(ctx, kube.Ref{Resource: kube.Jobs, Namespace: namespace}, []byte(body), kube.WriteOptions{})
		return err
	})
}

func (r *rig) close() (err error) {
	if r.plane != nil {
		err = r.plane.Close()
	}
	if r.collector != nil {
		r.collector.server.Stop()
	}
	return err
}

const namespace = "default"

func nameOf(i int) string { return "job-" + strconv.Itoa(i) }

// turn has every Job resumed or suspended once.
func (r *rig) turn(ctx context.Context, _ time.Duration) (map[string]float64, error) {
	r.suspended = !r.suspended
	body := fmt.Appendf(nil, `{"spec":{"suspend":%v}}`, r.suspended)
	before, err := r.usage()
	if err != nil {
		return nil, err
	}
	spans := r.collector.spans.Load()
	if err := r.until(ctx, func(ctx context.Context, i int) error {
		_, err := r.plane.Kube.Patch(ctx, kube.Jobs.Ref(namespace, nameOf(i)), kube.MergePatch, body, kube.WriteOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	if err := harness.Sleep(ctx, settled); err != nil {
		return nil, err
	}
	after, err := r.usage()
	if err != nil {
		return nil, err
	}
	return map[string]float64{
		"cpu":   float64((after - before).Microseconds()) / float64(r.jobs),
		"spans": float64(r.collector.spans.Load()-spans) * 1000 / float64(r.jobs),
	}, nil
}

// until does something to each Job, one every so often, and waits until the controller has written
// into the status of all that they are suspended, or not.
func (r *rig) until(ctx context.Context, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	page, err := r.plane.Kube.List(ctx, kube.Jobs, kube.ListOptions{Scope: kube.Scope{Namespace: namespace}})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	w, err := r.plane.Kube.Watch(ctx, kube.Jobs, kube.WatchOptions{Scope: kube.Scope{Namespace: namespace}, RV: page.RV})
	if err != nil {
		return err
	}
	defer w.Close()
	g.Go(func() error {
		tick := time.NewTicker(changeEvery)
		defer tick.Stop()
		for i := range r.jobs {
			if err := do(ctx, i); err != nil {
				return err
			}
			<-tick.C
		}
		return nil
	})
	g.Go(func() error {
		want, done := map[bool]string{true: "True", false: "False"}[r.suspended], map[string]bool{}
		for len(done) < r.jobs {
			e, err := w.Next()
			if err != nil {
				return fmt.Errorf("%d of %d Jobs were written: %w", len(done), r.jobs, err)
			}
			if gjson.GetBytes(e.Object, `status.conditions.#(type=="Suspended").status`).Str == want {
				done[gjson.GetBytes(e.Object, "metadata.name").Str] = true
			}
		}
		return nil
	})
	return g.Wait()
}

// usage is the CPU that the processes have used, without the cluster's.
func (r *rig) usage() (used time.Duration, err error) {
	var errs []error
	add := func(c *harness.Child) {
		u, err := c.Usage()
		used += u.CPU
		errs = append(errs, err)
	}
	for _, c := range r.plane.Parts {
		add(c)
	}
	for _, c := range r.plane.Workers {
		add(c)
	}
	return used, errors.Join(errs...)
}
