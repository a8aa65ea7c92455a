// Package gateway is an endpoint that speaks the Kubernetes API for one cluster. Reads of mirrored
// resources are answered from the index, everything else goes to the API server untouched, with the
// caller's own credentials.
//
//	request ──> parse ──> mirrored whole? ──> who asks, and may it? ──> recent enough? ──> answer
//	              │              │                     │                      │
//	              └──────────────┴─────────────────────┴──────────────────────┴──────────> API server
//
// Every step that is unresolved goes to the API server, whose answer is then the right one: what is
// refused is refused by it, in its words. The packages follow the way of a request: request parses,
// mirror keeps the states and events of collections, answer writes them, forward passes on.
package gateway
