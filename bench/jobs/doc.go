// Package jobs measures the Job controller beside that of kube-controller-manager: the same Jobs on
// two real clusters with simulated nodes, in turns.
package jobs
