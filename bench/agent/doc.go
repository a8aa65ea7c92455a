// Package agent holds the figures of the node agent: from a container's end to the pod's status, on
// a real containerd and on the simulated runtime.
package agent
