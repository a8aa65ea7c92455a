// Package control does what the cluster does by itself.
//
// In come the changes of the store; out go writes through package write, with the same checks as a
// client's. The Binder is what the scheduler does. The Collector removes the dependents of deleted
// owners and the contents of deleted namespaces and CRDs, and expires Events.
//
// It may touch write, read, store and kinds.
package control
