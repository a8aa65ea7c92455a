// Package nodes holds the figures of node failure: from a kubelet's silence to the eviction of its
// pods, beside kube-controller-manager.
package nodes
