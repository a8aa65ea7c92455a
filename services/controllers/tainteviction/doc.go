// Package tainteviction deletes pods from nodes whose NoExecute taints they do
// not tolerate (any longer), by the rules of core/taint.
//
// One queue holds two kinds of keys:
//
//	NAME            a node: whenever its NoExecute taints changed, its pods are woken
//	NAMESPACE/NAME  a pod: judged by its tolerations and its node's taints
//
//	             ┌─ forever ──────► nothing (a countdown that ran is cancelled)
//	pod ─ Stay ──┼─ ends later ───► the key comes back then: the delay is in the queue's store
//	             └─ ends now ─────► read live, judge again, DisruptionTarget, delete with UID
//
// What always holds:
//   - The end of a stay follows from the API's own facts (taint.timeAdded, the
//     pod's binding, tolerationSeconds). When a taint has no usable time, the time
//     it was first seen is kept in the key's saved state. So no crash moves a
//     deadline, and a queue whose store was lost is filled again with the same ones.
//   - Taints that change never move the end of a running countdown later, as
//     upstream: a node that changes between not-ready and unreachable loses its pods
//     when the first of the two ends their stay. They may move it earlier, and
//     tolerations that change move it both ways (upstream's timers never move).
//   - A pod is deleted only after it and its node were read live and judged again,
//     and only by its UID: neither an index that is behind nor a pod of the same
//     name is ever the cause of a wrong eviction.
//   - A deletion that fails is tried again, as the queue's limiter says, until the
//     pod is gone, is replaced or may stay (upstream gives up after five tries).
//   - A countdown that began goes on when the node's object is deleted.
//
// Upstream also deletes pods that have ended; so does this. Pods that are being
// deleted already are left alone.
package tainteviction
