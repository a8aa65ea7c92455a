package nodes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Kubernetes' defaults, which both sides are given.
const (
	defaultHeartbeat = 10 * time.Second
	defaultGrace     = 50 * time.Second
	defaultRate      = 0.1
)

// besideManager lets nodes of two real clusters fall silent in turn, one watched over
// by ours and one by kube-controller-manager's own controllers, each in a zone of its
// own, and measures how long it takes until they are tainted and their pod is deleted.
func besideManager(ctx context.Context, b *harness.Bench) (err error) {
	const what = "silence to eviction beside kube-controller-manager"
	if b.Quick {
		b.LeaveOut(what, "--quick; it takes four minutes")
		return nil
	}
	const (
		trials = 24
		apart  = 5500 * time.Millisecond // so that trials fall anywhere between two passes, which are 5 s apart
	)
	ours, err := newSide(ctx, b, "ours", trials)
	defer func() { err = errors.Join(err, ours.close()) }()
	if errors.Is(err, system.ErrNoCluster) {
		b.LeaveOut(what, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	theirs, err := newSide(ctx, b, "manager", trials,
		"--controllers", "garbage-collector-controller,serviceaccount-controller,serviceaccount-token-controller,namespace-controller,node-lifecycle-controller,taint-eviction-controller",
		"--manager-arg", fmt.Sprintf("--node-monitor-grace-period=%v", defaultGrace), "--manager-arg", fmt.Sprintf("--node-eviction-rate=%v", defaultRate))
	defer func() { err = errors.Join(err, theirs.close()) }()
	if err != nil {
		return err
	}
	p, err := plane.StartPlane(ctx, b, "beside", plane.PlaneConfig{Kubeconfig: ours.cluster.Kubeconfig(), Grace: defaultGrace})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Control(ctx, 1, defaultRate, "nodelifecycle", "tainteviction"); err != nil {
		return err
	}
	time.Sleep(2 * defaultHeartbeat) // every node is seen to be alive
	for i := range trials {
		ours.nodes.Silence(i, true)
		time.Sleep(apart / 2)
		theirs.nodes.Silence(i, true)
		time.Sleep(apart / 2)
	}
	for _, s := range []*nodesSide{ours, theirs} {
		if err := harness.Await(ctx, 2*time.Minute, "not every pod was evicted", s.seen.count(func() int { return len(s.seen.gone) }, trials)); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	b.Note("beside: Kubernetes 1.36 on two clusters of test/kube; %d trials a side in turn, %v apart, each node in a zone of two; heartbeats every %v, grace %v, rate %g, everything else by default (passes of kube-controller-manager every 5 s)", trials, apart, defaultHeartbeat, defaultGrace, defaultRate)
	b.Note("beside: the manager runs the two controllers with those that both clusters need, without client-side limits; times are from the last renewal to the event, as a watch of each API server saw them")
	return addBeside(b, trials, ours, theirs)
}

func addBeside(b *harness.Bench, trials int, ours, theirs *nodesSide) error {
	const name = "kube-controller-manager"
	oursTaint, oursGone, err := ours.times(trials)
	if err != nil {
		return err
	}
	theirsTaint, theirsGone, err := theirs.times(trials)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name         string
		ours, theirs []float64
	}{
		{"last heartbeat -> NoExecute taint", oursTaint, theirsTaint},
		{"last heartbeat -> its first pod deleted", oursGone, theirsGone},
	} {
		if least := slices.Min(f.ours); least < defaultGrace.Seconds()-0.1 {
			return fmt.Errorf("%s: after %.2f s, before the end of the grace", f.name, least)
		}
		b.Add(harness.Compare(f.name+", median of trials", "s", f.ours, name, f.theirs, harness.AtMost("ours", harness.SpreadOf(f.theirs).Median)))
		b.Add(harness.Compare(f.name+", greatest of trials", "s", []float64{slices.Max(f.ours)}, name, []float64{slices.Max(f.theirs)}, harness.AtMost("ours", slices.Max(f.theirs)+1)))
	}
	return nil
}

// nodesSide is a real cluster with nodes that send heartbeats, each node of the first
// half in a zone with one of the second and with a pod that leaves at once.
type nodesSide struct {
	name    string
	cluster *system.TestCluster
	kube    *kube.Client
	nodes   *plane.Kubelets
	seen    *observer
}

// newSide returns a side that is to be closed also when there is an error.
func newSide(ctx context.Context, b *harness.Bench, name string, trials int, args ...string) (s *nodesSide, err error) {
	s = &nodesSide{name: name}
	if s.cluster, err = system.BareCluster(ctx, b, filepath.Join(b.Dir, "kube-"+name), args...); err != nil {
		return s, err
	}
	if s.kube, err = kube.Load(kube.Config{Kubeconfig: s.cluster.Kubeconfig()}); err != nil {
		return s, err
	}
	if s.nodes, err = plane.Serve(ctx, s.kube, 2*trials, trials, defaultHeartbeat); err != nil {
		return s, err
	}
	if s.seen, err = watchNodes(ctx, s.kube); err != nil {
		return s, err
	}
	return s, s.nodes.Bind(ctx, trials, 1, taint.Unreachable, func(int) int { return 0 })
}

// times are from a node's last renewal to its taint and to the deletion of its pod.
func (s *nodesSide) times(trials int) (tainted, gone []float64, err error) {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	for i := range trials {
		from := s.seen.renewed[plane.KubeletName(i)]
		at, ok := s.seen.tainted[plane.KubeletName(i)]
		if !ok || from.IsZero() {
			return nil, nil, fmt.Errorf("%s: no taint or no heartbeat of %s was seen", s.name, plane.KubeletName(i))
		}
		tainted = append(tainted, at.Sub(from).Seconds())
		gone = append(gone, s.seen.gone[plane.PodName(i)].Sub(from).Seconds())
	}
	return tainted, gone, nil
}

func (s *nodesSide) close() (err error) {
	if s.seen != nil {
		s.seen.close()
	}
	if s.nodes != nil {
		err = s.nodes.Close()
	}
	if s.kube != nil {
		s.kube.Close()
	}
	if s.cluster != nil {
		err = errors.Join(err, s.cluster.Down())
	}
	return err
}
