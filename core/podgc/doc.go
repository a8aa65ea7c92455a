// Package podgc holds the rules by which pods are collected that nobody else will
// end: those bound to a node that is gone, those deleted before they were bound,
// those on a node that was put out of service, and of the pods that have ended the
// ones above a threshold. It reads nothing and keeps no time.
//
//	the pod                                             the reason
//	is bound to a node that does not exist              orphaned, after the quarantine
//	is being deleted and was never bound                unscheduled
//	is being deleted, its node is not ready and has
//	the taint node.kubernetes.io/out-of-service         out-of-service
//	has ended, with more than the threshold beside it   terminated
//
// A pod that has ended, is being deleted and has no time left is nobody's: only its
// finalizers keep it.
package podgc
