// Package prober probes the containers of a node's pods, as pods ask: by HTTP, TCP,
// gRPC, or a command in the container. When is decided by core/probe; what comes of
// it is for others to act on: the pod's status reads readiness and start, the runtime
// manager restarts what is not alive.
//
//	Add (sync of a pod) --> worker per probe --Status--> core/probe --due--> Func
//	Wake (new status) -----^                                                  |
//	                       Result <-- Settled <-- threshold reached <---------+
package prober
