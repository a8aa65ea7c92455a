package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
)

var (
	PlaneNode  = kube.Resource{Version: "v1", Name: "nodes", Kind: "Node"}
	PlanePod   = kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	PlaneLease = kube.Resource{Group: "coordination.k8s.io", Version: "v1", Name: "leases", Kind: "Lease", Namespaced: true}
)

// NodeLeases is the namespace of the leases of nodes.
const NodeLeases = "kube-node-lease"

// KubeletName is the name of a node by its number from 0.
func KubeletName(i int) string { return "bench-" + strconv.Itoa(i+1) }

// Kubelets are the heartbeats of nodes, as kubelets send them: each renews its
// lease at a phase of its own, and posts its status when it begins or comes back.
type Kubelets struct {
	kube  *kube.Client
	every time.Duration
	nodes []*kubelet
	stop  context.CancelFunc
	all   sync.WaitGroup

	mu  sync.Mutex // guards err
	err error
}

type kubelet struct {
	name   string
	silent atomic.Bool
	back   chan struct{}
}

// Serve makes n nodes in so many zones, evenly (none when zero), and keeps them alive until close.
func Serve(ctx context.Context, api *kube.Client, n, zones int, every time.Duration) (*Kubelets, error) {
	k := &Kubelets{kube: api, every: every, nodes: make([]*kubelet, n)}
	g, limited := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range k.nodes {
		k.nodes[i] = &kubelet{name: KubeletName(i), back: make(chan struct{}, 1)}
		labels := map[string]string{}
		if zones > 0 {
			labels[nodelifecycle.ZoneLabel] = "z" + strconv.Itoa(i%zones)
		}
		g.Go(func() error { return k.register(limited, k.nodes[i], labels) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	ctx, k.stop = context.WithCancel(ctx)
	for i, one := range k.nodes {
		k.all.Go(func() { k.live(ctx, one, every*time.Duration(i)/time.Duration(n)) })
	}
	return k, nil
}

func (k *Kubelets) register(ctx context.Context, n *kubelet, labels map[string]string) error {
	node, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": n.name, "labels": labels}})
	if err != nil {
		return err
	}
	if _, err := k.kube.Create(ctx, kube.Ref{Resource: PlaneNode}, node, kube.WriteOptions{}); err != nil {
		return err
	}
	lease := fmt.Appendf(nil, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"namespace":%q},"spec":{"holderIdentity":%[1]q,"leaseDurationSeconds":%[3]d,"renewTime":%[4]q}}`,
		n.name, NodeLeases, max(1, int(4*k.every.Seconds())), microTime())
	if _, err := k.kube.Create(ctx, kube.Ref{Resource: PlaneLease, Namespace: NodeLeases}, lease, kube.WriteOptions{}); err != nil {
		return err
	}
	return k.post(ctx, n)
}

func microTime() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") }

// post says that a node is ready.
func (k *Kubelets) post(ctx context.Context, n *kubelet) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions []nodelifecycle.Condition
	for _, c := range [][2]string{
		{nodelifecycle.MemoryPressure, nodelifecycle.False},
		{nodelifecycle.DiskPressure, nodelifecycle.False},
		{nodelifecycle.PIDPressure, nodelifecycle.False},
		{nodelifecycle.Ready, nodelifecycle.True},
	} {
		conditions = append(conditions, nodelifecycle.Condition{Type: c[0], Status: c[1], Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	_, err = k.kube.Patch(ctx, kube.Ref{Resource: PlaneNode, Name: n.name, Subresource: "status"}, kube.StrategicPatch, patch, kube.WriteOptions{})
	return err
}

// live renews a node's lease until ctx ends, unless it is silent.
func (k *Kubelets) live(ctx context.Context, n *kubelet, phase time.Duration) {
	next := time.NewTimer(phase)
	defer next.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-n.back:
			err = k.post(ctx, n)
		case <-next.C:
			next.Reset(k.every)
		}
		if !n.silent.Load() {
			patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, microTime())
			_, errBeat := k.kube.Patch(ctx, kube.Ref{Resource: PlaneLease, Namespace: NodeLeases, Name: n.name}, kube.MergePatch, patch, kube.WriteOptions{})
			err = errors.Join(err, errBeat)
		}
		if err != nil && ctx.Err() == nil {
			k.mu.Lock()
			k.err = errors.Join(k.err, fmt.Errorf("heartbeat of %s: %w", n.name, err))
			k.mu.Unlock()
		}
	}
}

// Silence stops or starts a node's heartbeats.
func (k *Kubelets) Silence(i int, stop bool) {
	n := k.nodes[i]
	if n.silent.Swap(stop) && !stop {
		n.back <- struct{}{}
	}
}

// Close ends the heartbeats and reports what went wrong with them.
func (k *Kubelets) Close() error {
	k.stop()
	k.all.Wait()
	return k.err
}

// run says of a pod that it runs and is ready, as its kubelet would.
func (k *Kubelets) run(ctx context.Context, namespace, name string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status":{"phase":"Running","startTime":%[1]q,"conditions":[{"type":"Ready","status":"True","lastTransitionTime":%[1]q}]}}`, now)
	_, err := k.kube.Patch(ctx, kube.Ref{Resource: PlanePod, Namespace: namespace, Name: name, Subresource: "status"}, kube.StrategicPatch, patch, kube.WriteOptions{})
	return err
}

// Bind makes pods that run on nodes 0 up to nodes, each of them so many; seconds is how
// long the pod with a number tolerates the taint.
func (k *Kubelets) Bind(ctx context.Context, nodes, each int, taint string, seconds func(i int) int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range nodes * each {
		g.Go(func() error {
			name := PodName(i)
			body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"nodeName":%q,
				"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}],
				"tolerations":[{"key":%q,"operator":"Exists","effect":"NoExecute","tolerationSeconds":%d}]}}`,
				name, KubeletName(i%nodes), taint, seconds(i))
			if _, err := k.kube.Create(ctx, kube.Ref{Resource: PlanePod, Namespace: "default"}, body, kube.WriteOptions{}); err != nil {
				return err
			}
			return k.run(ctx, "default", name)
		})
	}
	return g.Wait()
}

// PodName is the name of a pod by its number from 0.
func PodName(i int) string { return "p-" + strconv.Itoa(i) }
