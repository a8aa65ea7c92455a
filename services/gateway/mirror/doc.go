// Package mirror keeps what the index has of collections, for a server that speaks the Kubernetes
// API: exact states by resource version, and the events between them.
//
//	index --watch--> feed ──> store ──> View  exact state: lists, starts of watches
//	                            └─────> Events in the order of resource versions: watches
//
// A [View] is exactly what the API server has at every version from its upper bound to its
// revision. Events are published with the view that they lead to. So a reader that has everything
// up to a version goes on behind it: it misses nothing, and nothing comes twice.
//
// What is not known so is not shown: a [Mirror] that has lost history begins a new [History], and
// readers of the old one are ended.
package mirror
