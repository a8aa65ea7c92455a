package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/node"
)

// Run runs the node's pods until ctx ends, and returns nil then; containers go
// on. It returns an error when another agent holds the root directory
// ([dirlock.ErrTaken]) or the node ([node.ErrNodeTaken]), or the admin port cannot
// be opened. A runtime, an index or an API server that is away is waited for.
func (a *Agent) Run(ctx context.Context) error {
	defer func() { _ = a.cri.Close() }()
	if err := os.MkdirAll(a.podsDir(), 0o750); err != nil {
		return fmt.Errorf("nodeagent: root directory: %w", err)
	}
	lock, err := dirlock.Lock(a.cfg.RootDir)
	if err != nil {
		return fmt.Errorf("nodeagent: root directory: %w", err)
	}
	defer func() { _ = lock.Close() }()
	kubelet, port, err := a.kubeletAPI(ctx)
	if err != nil {
		return err
	}
	if kubelet != nil {
		defer func() { _ = port.Close() }()
	}
	registrar, err := a.registrar(port)
	if err != nil {
		return err
	}
	a.node.follow(registrar.Node)
	a.health.changed = registrar.Check
	lis, err := a.admin.Listen(ctx)
	if err != nil {
		return err
	}

	// What tells of the pods goes on until the last of their steps has ended.
	late, stopLate := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLate()
	g, ctx := errgroup.WithContext(ctx)
	var rest errgroup.Group
	rest.Go(func() error { return a.admin.Serve(late, lis) })
	rest.Go(func() error { return a.recorder.Run(late) })
	rest.Go(func() error { return a.statuses.Run(late) })

	g.Go(func() error {
		err := registrar.Run(ctx)
		if err != nil {
			a.pool.Abort() // another agent is this node: whatever is done in its name ends at once
			a.statuses.Abort()
		}
		return err
	})
	if kubelet != nil {
		g.Go(func() error { return kubelet.Serve(ctx, port) })
	}
	g.Go(func() error { a.health.run(ctx); return nil })
	g.Go(func() error { return a.pleg.Run(ctx) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-registrar.Registered():
		}
		target := a.cfg.CRI
		if a.deps.Runtime != nil {
			target = "in this process"
		}
		a.log.Info("node is registered", slog.String(telemetry.KeyTarget, target))
		return a.work(ctx)
	})
	err = g.Wait()
	stopLate()
	return errors.Join(err, rest.Wait())
}

// work runs pods until ctx ends.
func (a *Agent) work(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.pool.Run(ctx) })
	g.Go(func() error { return a.prober.Run(ctx) })
	g.Go(func() error { a.source.watch(ctx); return nil })
	g.Go(func() error { a.source.warnWhenStale(ctx); return nil })
	g.Go(func() error { a.source.settleDoubts(ctx); return nil })
	g.Go(func() error { a.sweeping(ctx); return nil })
	g.Go(func() error { a.loop(ctx); return nil })
	return g.Wait()
}

// registrar keeps the node's object and lease. kubelet is where the kubelet's API is served, or
// nil.
func (a *Agent) registrar(kubelet net.Listener) (*node.Registrar, error) {
	instance, err := node.Instance(a.cfg.RootDir)
	if err != nil {
		return nil, fmt.Errorf("nodeagent: %w", err)
	}
	cfg := node.Config{
		Name: a.cfg.Node, Instance: instance, Labels: a.cfg.Labels, Annotations: a.cfg.Annotations, Taints: a.cfg.Taints,
		Capacity: a.capacity(), HeartbeatEvery: a.cfg.Heartbeat,
		Event: func(reason, message string) {
			a.recorder.Event(kube.Involved{APIVersion: "v1", Kind: "Node", Name: a.cfg.Node, UID: a.cfg.Node}, kube.Normal, reason, message) // the kubelet's UID, too
		},
		Info: func() corev1.NodeSystemInfo {
			return corev1.NodeSystemInfo{ContainerRuntimeVersion: a.health.runtimeVersion()}
		},
	}
	if a.cfg.Address != "" {
		cfg.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: a.cfg.Address}, {Type: corev1.NodeHostName, Address: a.cfg.Node},
		}
	}
	if kubelet != nil {
		if at, ok := kubelet.Addr().(*net.TCPAddr); ok {
			cfg.KubeletPort = int32(at.Port) //nolint:gosec // a port
		}
	}
	var readings node.Sources // a node simulated in this process is never short of what the machine is
	if a.deps.Runtime == nil {
		readings = node.System(filepath.Clean(a.cfg.RootDir))
	}
	return node.New(cfg, a.deps.Kube, readings, a.nodeHealth, a.log)
}

// firstLook is how long the first report of a node waits for its runtime to be asked and listed.
const firstLook = 5 * time.Second

// looked returns once the runtime is known to be well or in error, or firstLook is over. An agent
// that is started again must not say of its node that it is not ready because nobody has looked
// yet: it would be tainted, and pods that tolerate no such taint evicted.
func (a *Agent) looked(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := a.health.err(); err != nil && !errors.Is(err, errNotAsked) || err == nil && a.pleg.Healthy() == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// nodeHealth is what keeps the node from being ready.
func (a *Agent) nodeHealth(ctx context.Context) []error {
	a.first.Do(func() { a.looked(ctx) })
	var faults []error
	if err := a.health.err(); err != nil {
		faults = append(faults, err)
	}
	if err := a.pleg.Healthy(); err != nil {
		faults = append(faults, err)
	}
	if err := a.health.network(); err != nil && a.cfg.WaitForNetwork {
		faults = append(faults, fmt.Errorf("network is not ready: %w", err))
	}
	return faults
}
