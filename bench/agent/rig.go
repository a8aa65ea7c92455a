package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// An agentRig is a container runtime with agents on it, each a process of its own,
// and the API server and pipeline that bring them their pods.
type agentRig struct {
	b     *harness.Bench
	plane *plane.Plane
	real  *containerd.Containerd // nil: simulated
	sim   *harness.Child
	at    string // the runtime's endpoint
	dir   string // short: a socket lies in it
	cri   *cri.Client
	stop  []*harness.Child // the agents
	pods  *podObserver
	n     int // pods made
}

// newAgentRig starts a runtime, real when that is asked for, with everything but agents.
// The error is containerd.ErrMissing where no real one can run.
func newAgentRig(ctx context.Context, b *harness.Bench, name string, real bool) (r *agentRig, err error) {
	r = &agentRig{b: b}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.dir, err = os.MkdirTemp("", "dp-agent-"); err != nil {
		return r, err
	}
	if real {
		programs, err := containerd.Built(ctx)
		if err != nil {
			return r, err
		}
		if r.real, err = containerd.Start(ctx, programs, filepath.Join(r.dir, "c")); err != nil {
			return r, err
		}
		r.at = r.real.Endpoint()
	} else {
		path := filepath.Join(r.dir, "cri.sock")
		if r.sim, err = b.Spawn(ctx, "runtime", harness.Place{}, path, nil); err != nil {
			return r, err
		}
		r.at = "unix://" + path
	}
	if r.cri, err = cri.Dial(ctx, r.at); err != nil {
		return r, err
	}
	if r.plane, err = plane.StartPlane(ctx, b, name, plane.PlaneConfig{}); err != nil {
		return r, err
	}
	if r.pods, err = watchPods(ctx, r.plane.Kube); err != nil {
		return r, err
	}
	return r, nil
}

// agent starts the agent of a node and waits until it is ready.
func (r *agentRig) agent(ctx context.Context, node string, events bool, initial, limit time.Duration) (*harness.Child, error) {
	c, err := r.b.Spawn(ctx, "agent", harness.Place{}, agentConfig{
		Node: node, API: r.plane.Cfg.API, Index: r.plane.Cfg.Index, CRI: r.at, Dir: filepath.Join(r.dir, node),
		NoEvents: !events, MaxPods: 1000, Initial: initial, Limit: limit,
	}, nil)
	if err != nil {
		return nil, err
	}
	r.stop = append(r.stop, c)
	return c, harness.Await(ctx, time.Minute, "the agent of "+node+" is not ready", func() (ready bool, err error) {
		return ready, c.Call("ready", nil, &ready)
	})
}

// benchPod is what a pod of the bench runs.
type benchPod struct {
	node   string
	forNow time.Duration // 0 for ever
	code   int
	always bool // restart it
}

// create makes a pod and returns its name.
func (r *agentRig) create(ctx context.Context, p benchPod) (string, error) {
	r.n++
	name := "p-" + strconv.Itoa(r.n)
	return name, r.createAs(ctx, name, p)
}

func (r *agentRig) createAs(ctx context.Context, name string, p benchPod) error {
	policy, run := "Never", "forever"
	if p.always {
		policy = "Always"
	}
	command := []string{"/box", "pause"}
	if p.forNow > 0 {
		run, command = p.forNow.String(), []string{"/box", "exit", strconv.Itoa(p.code), p.forNow.String()}
	}
	pod, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "namespace": "default", "annotations": map[string]string{
			criruntime.RunSecondsAnnotation: run, criruntime.ExitCodeAnnotation: strconv.Itoa(p.code),
		}},
		"spec": map[string]any{
			"nodeName": p.node, "restartPolicy": policy, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
			"containers": []any{map[string]any{"name": "c", "image": containerd.BoxImage, "imagePullPolicy": "IfNotPresent", "command": command}},
		},
	})
	if err != nil {
		return err
	}
	_, err = r.plane.Kube.Create(ctx, kube.Ref{Resource: plane.PlanePod, Namespace: "default"}, pod, kube.WriteOptions{})
	return err
}

// fill makes n pods at once that run for ever, and waits until all do.
func (r *agentRig) fill(ctx context.Context, n int, node string, most time.Duration) ([]string, error) {
	names := make([]string, n)
	g, limited := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range names {
		r.n++
		names[i] = "p-" + strconv.Itoa(r.n)
		g.Go(func() error { return r.createAs(limited, names[i], benchPod{node: node}) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return names, harness.Await(ctx, most, fmt.Sprintf("not all of %d pods run", n), func() (bool, error) {
		running, err := r.pods.running(names)
		return running == n, err
	})
}

// oneRun is one instance of a container, by the runtime's times.
type oneRun struct{ created, started, finished time.Time }

// container is what the runtime says of a container.
func (r *agentRig) container(ctx context.Context, id string) (oneRun, error) {
	got, err := r.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return oneRun{}, err
	}
	s := got.GetStatus()
	return oneRun{time.Unix(0, s.GetCreatedAt()), time.Unix(0, s.GetStartedAt()), time.Unix(0, s.GetFinishedAt())}, nil
}

func (r *agentRig) close() (err error) {
	if r.pods != nil {
		r.pods.close()
	}
	for _, c := range r.stop {
		err = errors.Join(err, c.Stop())
	}
	if r.plane != nil {
		err = errors.Join(err, r.plane.Close())
	}
	if r.cri != nil {
		err = errors.Join(err, r.cri.Close())
	}
	if r.sim != nil {
		err = errors.Join(err, r.sim.Stop())
	}
	if r.real != nil {
		err = errors.Join(err, r.real.Close())
	}
	if r.dir != "" {
		err = errors.Join(err, os.RemoveAll(r.dir))
	}
	return err
}

// podObserver is what a watcher of the API server saw of pods, and when.
type podObserver struct {
	stop context.CancelFunc
	all  sync.WaitGroup

	mu    sync.Mutex                      // guards what follows
	ran   map[string]time.Time            // by pod: first seen Running
	ended map[string]map[string]time.Time // by pod, by container ID: first seen terminated
	err   error
}

// watchPods follows the pods of the default namespace until close.
func watchPods(ctx context.Context, api *kube.Client) (*podObserver, error) {
	scope := kube.Scope{Namespace: "default"}
	page, err := api.List(ctx, plane.PlanePod, kube.ListOptions{Scope: scope})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, err := api.Watch(ctx, plane.PlanePod, kube.WatchOptions{Scope: scope, RV: page.RV})
	if err != nil {
		cancel()
		return nil, err
	}
	s := &podObserver{stop: cancel, ran: map[string]time.Time{}, ended: map[string]map[string]time.Time{}}
	s.all.Go(func() {
		defer w.Close()
		for {
			e, err := w.Next()
			at := time.Now()
			if err != nil {
				s.mu.Lock()
				if ctx.Err() == nil {
					s.err = err
				}
				s.mu.Unlock()
				return
			}
			if e.Type != kube.EventBookmark {
				s.see(e.Object, at)
			}
		}
	})
	return s, nil
}

func (s *podObserver) see(object []byte, at time.Time) {
	name := gjson.GetBytes(object, "metadata.name").String()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.ran[name]; !known && gjson.GetBytes(object, "status.phase").String() == "Running" {
		s.ran[name] = at
	}
	for _, path := range []string{"status.containerStatuses.0.state.terminated.containerID", "status.containerStatuses.0.lastState.terminated.containerID"} {
		id := bareID(gjson.GetBytes(object, path).String())
		if id == "" {
			continue
		}
		if s.ended[name] == nil {
			s.ended[name] = map[string]time.Time{}
		}
		if _, known := s.ended[name][id]; !known {
			s.ended[name][id] = at
		}
	}
}

func (s *podObserver) running(names []string) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if _, ran := s.ran[name]; ran {
			n++
		}
	}
	return n, s.err
}

// endsOf are the containers of a pod that were seen to have ended.
func (s *podObserver) endsOf(name string) (map[string]time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.ended[name]), s.err
}

func (s *podObserver) close() {
	s.stop()
	s.all.Wait()
}
