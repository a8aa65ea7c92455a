package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// kubelet is a node that the test keeps alive, with a clock two hours behind.
type kubelet struct {
	f    *flow
	name string

	mu    sync.Mutex // guards quiet
	quiet bool
}

func (k *kubelet) silence(quiet bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.quiet = quiet
}

func (k *kubelet) silent() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.quiet
}

func behind() time.Time { return time.Now().Add(-2 * time.Hour).UTC() }

// register makes the node and its lease, and says that it is ready.
func (k *kubelet) register(zone string) {
	k.f.t.Helper()
	ctx := k.f.t.Context()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{%q:%q,"kubernetes.io/os":"linux"}}}`, k.name, nodelifecycle.ZoneLabel, zone)
	need(k.f.kube.Create(ctx, kube.Ref{Resource: kube.Nodes}, []byte(body), kube.WriteOptions{}))
	body = fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"namespace":%q},"spec":{"holderIdentity":%[1]q,"leaseDurationSeconds":40}}`, k.name, kube.NodeLeaseNamespace)
	need(k.f.kube.Create(ctx, kube.Ref{Resource: kube.Leases, Namespace: kube.NodeLeaseNamespace}, []byte(body), kube.WriteOptions{}))
	k.post()
	k.f.t.Cleanup(func() { // the cluster may outlive the test
		ctx := context.WithoutCancel(k.f.t.Context())
		_, errNode := k.f.kube.Delete(ctx, kube.Nodes.Ref("", k.name), kube.DeleteOptions{})
		_, errLease := k.f.kube.Delete(ctx, kube.Leases.Ref(kube.NodeLeaseNamespace, k.name), kube.DeleteOptions{})
		for _, err := range []error{errNode, errLease} {
			if err != nil && !kube.IsNotFound(err) && os.Getenv(kubeconfigEnv) != "" {
				k.f.t.Errorf("%s is left behind: %v", k.name, err)
			}
		}
	})
}

// post says that the node is ready.
func (k *kubelet) post() {
	k.f.t.Helper()
	now := behind().Format(time.RFC3339)
	var conditions []nodelifecycle.Condition
	for kind, status := range map[string]string{"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"} {
		conditions = append(conditions, nodelifecycle.Condition{Type: kind, Status: status, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "Kubelet"})
	}
	patch := need(json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}}))
	need(k.f.kube.Patch(k.f.t.Context(), kube.Ref{Resource: kube.Nodes, Name: k.name, Subresource: "status"}, kube.StrategicPatch, patch, kube.WriteOptions{}))
}

// beat renews the lease once.
func (k *kubelet) beat() {
	if k.silent() {
		return
	}
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, behind().Format("2006-01-02T15:04:05.000000Z"))
	ref := kube.Leases.Ref(kube.NodeLeaseNamespace, k.name)
	if _, err := k.f.kube.Patch(k.f.t.Context(), ref, kube.MergePatch, []byte(patch), kube.WriteOptions{}); err != nil && k.f.t.Context().Err() == nil {
		k.f.t.Errorf("%s: %v", k.name, err)
	}
}

// serve renews the leases of all until the test ends.
func (f *flow) serve(kubelets []*kubelet) {
	done := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			for _, k := range kubelets {
				k.beat()
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	f.t.Cleanup(func() {
		close(done)
		beats.Wait()
	})
}

// The test runs on the cluster that DELTAPLANE_KUBECONFIG names, which must have
// no nodes of its own, or on the dev cluster.
func TestThreeReplicasRuleTheLivesOfNodesOnAnyAPIServer(t *testing.T) {
	t.Parallel()
	var kc *kube.Client
	if file := os.Getenv(kubeconfigEnv); file != "" {
		embeddedtest.Alone(t, file)
		kc = need(kube.Load(kube.Config{Kubeconfig: file}))
		if page := need(kc.List(t.Context(), kube.Nodes, kube.ListOptions{})); len(page.Items) > 0 {
			t.Skip("the cluster has nodes of its own")
		}
	} else {
		kc = cluster(t)
	}
	f := newFlowOn(t, kc)
	var kubelets []*kubelet
	for i := range 4 {
		kubelets = append(kubelets, &kubelet{f: f, name: fmt.Sprint("test-", i)})
		kubelets[i].register(fmt.Sprint("z", i/2))
	}
	f.serve(kubelets)
	for _, name := range []string{"a", "b", "c"} {
		f.controllers(name, func(c *Config) {
			lifecycle(c)
			c.Controllers = append(c.Controllers, "tainteviction")
		})
	}
	for _, k := range kubelets {
		f.eventually("labels of "+k.name, func() string { return missing(f.node(k.name).Metadata.Labels["beta.kubernetes.io/os"]) })
	}
	f.bindTo("immediate", "test-0", taint.Unreachable, 0)
	// Spared's time ends after test-1 answers again, and before delayed is due.
	f.bindTo("delayed", "test-0", taint.Unreachable, 15)
	f.bindTo("spared", "test-1", taint.Unreachable, 12)
	f.bindTo("elsewhere", "test-2", taint.Unreachable, 0)
	kubelets[0].silence(true)
	kubelets[1].silence(true)
	f.eventually("a zone is down", func() string {
		a, b := f.node("test-0"), f.node("test-1")
		if !taint.Has(a.Spec.Taints, taint.Unreachable, taint.NoExecute) || !taint.Has(b.Spec.Taints, taint.Unreachable, taint.NoExecute) {
			return f.tainted()
		}
		return ""
	})
	kubelets[1].silence(false)
	kubelets[1].post()
	f.leaves("those on the dead node go, in time", "elsewhere", "spared")
	f.taints("the other one is back", "test-0:unreachable")
	c := f.node("test-0").Condition(nodelifecycle.Ready)
	if c.Status != nodelifecycle.Unknown || c.Reason != nodelifecycle.StatusUnknown {
		t.Errorf("Ready of the dead node: %+v", c)
	}
	for _, name := range []string{"test-1", "test-2", "test-3"} {
		if n := f.node(name); n.Ready() != nodelifecycle.True || len(n.Spec.Taints) > 0 {
			t.Errorf("%s: Ready %s, taints %+v", name, n.Ready(), n.Spec.Taints)
		}
	}
}
