// Package pleg is the node agent's pod lifecycle event generator: it finds out
// what happened to the containers of the node, keeps the status of every pod in a
// cache, and tells the pod workers which pods to look at. The rules are in
// core/pleg; here are the loop, the inspections to the runtime and the cache.
//
//	runtime --list, 1 s or 5 min--> +------+ --ask, 8 at a time--> runtime
//	runtime --event stream--------> | loop | <--status------------ runtime
//	RequestRelist, RequestReinspect | (Run)| --> Cache, then Events
//
// One goroutine, Run's, knows everything and decides everything. It waits for the
// runtime's list only: the status of a pod is asked for on the side, so that a pod
// whose inspection hangs holds up nobody but itself. A pod is not asked about twice
// at once; what is learnt of it meanwhile makes it be asked once more.
//
// An event is published after the status that shows it is in the cache. Until it
// was taken it stays in the records: a status that cannot be had, or a channel
// that is full, delays the events of a pod and loses none.
//
// While the runtime's event stream delivers, lists are a safety net. A stream is
// trusted from its first event on, and no longer when it ends, when more came than
// fits, or when a list finds a change that it did not tell; untrusted, lists come
// every second, as if there were no stream.
package pleg
