// Package job is the Job controller: it keeps the pods of batch/v1 Jobs as the
// upstream controller of Kubernetes 1.36 does. docs/rules.md#job-controller lists
// the rules it follows.
//
// # How a sync goes
//
//	lease ─► read Job and pods from the index, at the lease's barrier
//	          │     (live instead, when the index cannot be trusted)
//	          ▼
//	        claim: adopt, release, drop surplus             claim, dropSurplus
//	          ▼
//	        turn: decide, without I/O                       begin
//	          ▼
//	        delete or create pods                           act, acted
//	          ▼
//	        write status with new uncounted pods            track, step (i)
//	        remove their finalizers                         removeFinalizers, (ii)
//	        write status with counters, terminal condition  counted, end, (iii, iv)
//	          ▼
//	        save state, settle with what was read and written
//
// A [Reconciler] remembers nothing. What must survive a sync is kept by the queue
// with the key, fenced by the lease's token: the ordinals given out, the
// pod-failure record, and the names of pods that may have been created. It is
// bound to the Job's UID, so a Job deleted and made again starts afresh at once.
//
// # What is promised
//
// Let the holder of a key be the reconcile whose token the queue last gave out.
// A process may be stopped anywhere and continued at any time; its calls may
// arrive late.
//
//  1. No write is sent after the lease's end by the sender's own clock.
//  2. No pod is created before its name is on record and the mark above its
//     ordinal is saved, both refused to a stale token.
//  3. A holder that follows one that did not settle, or whose own write had no
//     answer, reads the Job and its pods live, and uses no index before it has
//     reached that list. A conflict on the status counts as such a doubt, and so
//     does a Job whose status accounts for fewer pods than have ended and lost
//     their finalizer: it is older than its pods.
//  4. Names on record that do not exist are tried again, before new ones, of an indexed
//     Job before new ones of their index. So two holders that mean the same pod meet at
//     the same name, and the API server admits one.
//  5. A pod made by a late call, after the pod of that name has been counted and
//     removed, carries a token other than the one that won its ordinal (package
//     core/replica). It is removed and never counted. A pod that appears after its
//     Job has ended is removed as well.
//  6. A pod is counted when its UID was written to uncountedTerminatedPods and its
//     finalizer is gone since; a success of an indexed Job when its index was written
//     to completedIndexes, once however often. Status writes carry the resource version they were
//     decided on, patches and deletions the UID, and the patch that gives up a
//     pod's right to be counted (scaling down) a version of the pod in which it is
//     active; where the index shows an older one, the pod is read live.
//
// Hence at most parallelism pods are active, each success is counted once, and
// counters never fall. What is left to chance is a packet that was sent in time and
// arrives more than five minutes after its lease ended, when its name is no longer
// on record: its pod is one too many for a moment, is removed as such, and not
// counted.
//
// All of this is said of one queue. Two queues that serve one cluster give each
// Job two holders at once. They mean the same names, and the status keeps their
// counters right, but between the decision of one and its create the other may
// count and end the Job: a pod too many then runs until it is removed.
//
// # Pods without a Job
//
// Finalizers of pods whose Job is gone, finished, or another of the same name are
// removed when the Job's key is synced; there is no second queue. Pods
// wake the Job that owns or has owned them, and the one whose name they carry as
// label ([Wakes]), so a key is synced after the garbage collector has taken the
// reference away. The absence of the Job is checked live before.
//
// A pod that nobody controls also puts its namespace's [OrphansKey] into the queue,
// which wakes the Jobs there that have a selector of their own. They look
// for the pod at its revision or later. Which Jobs there are is read a batch period
// after the pod was seen; an index that is further behind than that may miss a Job
// made just before the pod, which then adopts it at its next sync.
//
// # What differs from upstream
//
//   - Gang scheduling is not implemented: neither Workload nor PodGroup is made.
//   - Pods are named by ordinal instead of at random, and carry the annotation
//     [TokenAnnotation].
//   - The failure back-off survives restarts (upstream issue 114650) and status
//     writes without an answer, creations in a namespace that is being deleted
//     are not counted as active, and a pod that lost its finalizer to a deletion
//     that then failed is deleted first.
//   - ttlSecondsAfterFinished is kept by this controller, not by one of its
//     own, also for the Jobs that other controllers manage.
//   - An activeDeadlineSeconds of more than a hundred years never ends a Job (upstream
//     one that no duration holds ends it at once).
package job
