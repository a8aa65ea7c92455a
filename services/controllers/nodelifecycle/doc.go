// Package nodelifecycle finds dead nodes and keeps pods away from them, by the rules
// of core/nodelifecycle.
//
//	node or lease changed, or time to look ──► key NAME ──► Reconciler.Node
//	    heartbeat?          remembered in the key's saved state
//	    silent too long?    read live; conditions Unknown; Event
//	    taints, labels      NoSchedule at once; NoExecute swapped or removed at once
//	    first NoExecute     key NAME in the queue of its zone
//	    Ready unknown       its pods' Ready becomes False
//	    Ready False         so does that of pods bound since, once
//
//	queue of a zone, which hands out no faster than the zone's rate ──► Reconciler.Taint
//	    read live, place the taint
//
//	every few seconds, in each replica ──► Zones.Refresh
//	    count the index's nodes by zone, set each queue's rate
//
// What always holds:
//   - Silence is judged only while the collections of nodes and leases are
//     followed, and what seems silent is read live before anything is written: a
//     reflector, log or index that stalls taints nobody (see core/nodelifecycle).
//   - What is remembered of a node is in the queue's store, the rates are those of
//     queues: replicas share both, and a restart changes neither.
//   - Every write names the UID and the version it was decided on; a conflict is
//     tried again from the start.
//   - Within a zone nodes are tainted in the order in which their silence passed
//     the grace, and one that answers again leaves the queue.
package nodelifecycle
