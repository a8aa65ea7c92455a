// Package podworker runs one goroutine per pod UID, which brings the pod through
// its life: sync, terminating, terminated. What a worker may do next is decided by
// core/podsync; here are the goroutines, the contexts and the waiting for a status
// that is new enough.
package podworker
