// Package nodeagent runs the pods of one node on a container runtime: the part
// of the kubelet that turns a pod bound to a node into containers, and what
// becomes of them into the pod's status.
//
//	index --Watch node--> source --configCh--+
//	pleg  --events-------------------plegCh--+--> loop --UpdatePod--> podworker (one per UID)
//	work queue --due pods------------syncCh--+                             |
//	2 s ticker ----------------housekeepingCh+                             v
//	                           SyncPod, SyncTerminatingPod, SyncTerminatedPod
//	                            volumes, environment, runtime manager, status
//
// What always holds:
//
//   - Of one pod UID at most one sync runs at a time, and a pod that has begun
//     to terminate is never started again.
//   - The agent ends a pod only by what the pod itself says (a deletion stamp, a
//     terminal phase) or after the API server itself has confirmed that this UID
//     is gone from this node. An index that is away, restarted, empty or behind
//     ends nothing.
//   - What runs when the agent starts is taken over, found by its labels. Nothing
//     is started twice, and nothing of another node is touched.
//   - While the runtime is down the node is NotReady and the loop pauses; what is
//     known is kept.
package nodeagent
