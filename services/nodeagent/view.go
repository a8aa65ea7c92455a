package nodeagent

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// nodeView is the node's object as others of the agent need it.
type nodeView struct {
	mu  sync.Mutex
	get func() *corev1.Node // nil before Run
}

func (v *nodeView) follow(get func() *corev1.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.get = get
}

// object is nil before the node was registered.
func (v *nodeView) object() *corev1.Node {
	v.mu.Lock()
	get := v.get
	v.mu.Unlock()
	if get == nil {
		return nil
	}
	return get()
}

// hostIPs are the node's addresses, the primary first.
func (v *nodeView) hostIPs() []string {
	n := v.object()
	if n == nil {
		return nil
	}
	var ips []string
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

func (v *nodeView) allocatable() corev1.ResourceList {
	if n := v.object(); n != nil {
		return n.Status.Allocatable
	}
	return nil
}
