// Package podgc deletes pods that nobody else will end, by the rules of core/podgc.
//
// One queue holds three kinds of keys:
//
//	NAME            a node: while it is missing its quarantine runs, then its pods are collected
//	NAMESPACE/NAME  a pod: one whose node is missing wakes that node's key
//	@terminated     the pods that have ended: counted every 20 s
//
//	             ┌─ exists ─────────► nothing (a quarantine that ran is cancelled)
//	node ────────┼─ missing ────────► since when is saved, and the key comes back in 40 s
//	             └─ long missing ───► read live; when it is not found, each pod that is bound to it:
//	                                  read live, phase Failed and DisruptionTarget, delete with UID
//
// What always holds:
//   - The time at which a node was first found missing is the saved state of its
//     key, and the quarantine's end a delayed key: no crash moves either.
//   - A pod is collected only after it and its node were read live and judged again,
//     and written to only as it was read: neither an index that is behind nor a pod of
//     the same name is ever the cause of a wrong deletion.
//   - While nobody follows pods and nodes nothing is deleted: the key comes back.
//   - A pod that has not ended is marked as failed before it is deleted, so that who
//     counts pods sees how it ended.
//   - Ended pods are counted by the index, and read only when they are too many; each
//     is deleted at the version at which it was seen.
package podgc
