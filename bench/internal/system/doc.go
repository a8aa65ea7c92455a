// Package system holds what is measured by more than one family, as servants of a child process and
// as the parent's side of them: the log, indexers, reflectors, queue services, informers, sources
// of deltas and API servers.
//
// In come configurations, which cross to the child as JSON. Out go addresses, and numbers that a
// child took of itself.
package system
