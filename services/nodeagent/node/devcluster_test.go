package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/node"
)

func TestANodeOnAnAPIServer(t *testing.T) {
	t.Parallel()
	c, err := kube.Load(kube.Config{URL: devclustertest.Start(t, devcluster.Config{}).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	run := func(instance string) (*node.Registrar, chan error, context.CancelFunc) {
		t.Helper()
		cfg := node.Config{Name: "worker", Instance: instance, HeartbeatEvery: 500 * time.Millisecond, CheckEvery: 50 * time.Millisecond}
		r, err := node.New(cfg, c, node.System(t.TempDir()), nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		return r, done, cancel
	}
	first, done, stop := run("first")
	select {
	case <-first.Registered():
	case <-time.After(20 * time.Second):
		t.Fatal("not registered")
	}
	raw, err := c.Get(t.Context(), kube.Ref{Resource: kube.Resource{Version: "v1", Name: "nodes"}, Name: "worker"})
	if err != nil {
		t.Fatal(err)
	}
	var n corev1.Node
	if err := json.Unmarshal(raw, &n); err != nil || len(n.Status.Conditions) != 4 || n.Status.Capacity.Cpu().IsZero() {
		t.Errorf("node is %s, %v", raw, err)
	}
	_, refused, _ := run("second")
	if err := <-refused; !errors.Is(err, node.ErrNodeTaken) {
		t.Errorf("Run() of a second agent = %v, want ErrNodeTaken", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil on a clean stop", err)
	}
	raw, err = c.Get(t.Context(), kube.Ref{Resource: kube.Resource{Group: "coordination.k8s.io", Version: "v1", Name: "leases", Namespaced: true}, Namespace: "kube-node-lease", Name: "worker"})
	var l coordinationv1.Lease
	if err != nil || json.Unmarshal(raw, &l) != nil || l.Annotations[node.InstanceAnnotation] != "" || *l.Spec.LeaseDurationSeconds != 2 {
		t.Errorf("lease is %s, %v; want it given up", raw, err)
	}
}
