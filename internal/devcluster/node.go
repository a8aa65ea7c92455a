package devcluster

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statusEvery is how often a node reports its status when nothing changed. Like a
// real kubelet's it is rare: the lease carries the heartbeat.
const statusEvery = 5 * time.Minute

// heartbeat renews every living node's lease and, when it is time or something is
// amiss, its status.
func (n *nodes) heartbeat(first bool) {
	names := n.names()
	slices.Sort(names)
	for _, name := range names {
		if !n.runs(name) {
			continue
		}
		err := n.register(name, first)
		if err == nil {
			err = n.renew(name)
		}
		if err != nil && !apierrors.IsConflict(err) {
			n.api.warn("heartbeat", err, name)
		}
	}
}

// register creates the node, or reports its status when it is due.
func (n *nodes) register(name string, force bool) error {
	r := n.api.registry.get("nodes")
	now := metav1.NewTime(n.api.store.now()).Rfc3339Copy()
	cur := n.api.store.get(r, name)
	if cur == nil {
		_, err := n.api.create(r, newNode(name, now), writeOptions{manager: "kubelet"})
		return err
	}
	node := cur.obj.(*corev1.Node)
	if !force && nodeReady(node) && now.Sub(lastReport(node)) < statusEvery {
		return nil
	}
	_, err := n.api.update(r, name, writeOptions{manager: "kubelet", sub: "status"}, func(cur *object) (apiObject, error) {
		next := cur.clone().(*corev1.Node)
		reportNode(next, now)
		return next, nil
	})
	return err
}

func lastReport(n *corev1.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

func newNode(name string, now metav1.Time) *corev1.Node {
	size := corev1.ResourceList{
		corev1.ResourceCPU: quantity.MustParse("8"), corev1.ResourceMemory: quantity.MustParse("32Gi"),
		corev1.ResourcePods: quantity.MustParse("10k"), corev1.ResourceEphemeralStorage: quantity.MustParse("100Gi"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Spec: corev1.NodeSpec{ProviderID: "dev://" + name},
		Status: corev1.NodeStatus{
			Capacity: size, Allocatable: size,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: hostIP(name)}, {Type: corev1.NodeHostName, Address: name}},
			NodeInfo:  corev1.NodeSystemInfo{KubeletVersion: serverVersion, OperatingSystem: "linux", Architecture: "amd64", ContainerRuntimeVersion: "dev://1"},
		},
	}
	reportNode(n, now)
	return n
}

// reportNode sets the conditions a healthy kubelet reports.
func reportNode(n *corev1.Node, now metav1.Time) {
	for _, c := range []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
	} {
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		i := slices.IndexFunc(n.Status.Conditions, func(was corev1.NodeCondition) bool { return was.Type == c.Type })
		if i < 0 {
			n.Status.Conditions = append(n.Status.Conditions, c)
			continue
		}
		if n.Status.Conditions[i].Status == c.Status {
			c.LastTransitionTime = n.Status.Conditions[i].LastTransitionTime
		}
		n.Status.Conditions[i] = c
	}
}

// renew writes the node's lease.
func (n *nodes) renew(name string) error {
	r := n.api.registry.get("leases.coordination.k8s.io")
	now := metav1.NewMicroTime(n.api.store.now())
	seconds := int32(max(4*n.api.cfg.HeartbeatEvery/time.Second, 1))
	key := objectKey(corev1.NamespaceNodeLease, name)
	if n.api.store.get(r, key) == nil {
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}
		if node := n.api.store.get(n.api.registry.get("nodes"), name); node != nil {
			lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.obj.GetUID()}}
		}
		_, err := n.api.create(r, lease, writeOptions{manager: "kubelet"})
		return err
	}
	_, err := n.api.update(r, key, writeOptions{manager: "kubelet"}, func(cur *object) (apiObject, error) {
		next := cur.clone().(*coordinationv1.Lease)
		next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds, next.Spec.RenewTime = &name, &seconds, &now
		return next, nil
	})
	return err
}
