// Package delta holds the rules of Deltaplane's delta log: how collections, keys and resource
// versions are named and compared, how a record is written into subjects and message headers, what
// a relist publishes ([Shadow]), how changes wait for a slow log ([Stage]), and when a reader may
// claim a revision ([Follower]).
//
// Shadow and Stage together are what client-go's DeltaFIFO is to an informer: the shadow is its
// view of what is known, queued or not, the stage its queue. Where each of its rules is kept:
//
//   - stage: a key keeps its position while it waits; once handed out, it goes to the tail.
//   - both: the types are Added, Updated, Deleted and Replaced; Sync is never on the log.
//   - stage: consecutive deletions become one, the one with the object; nothing else is merged
//     while there is room.
//   - shadow: the deletion of an unknown key is nothing; known includes what is queued.
//   - shadow: a deletion inferred from a list has the key, UID, owners, hints and labels, and no
//     object.
//   - both: a list is published as what differs, then the tombstones. client-go delivers unchanged
//     objects again; here they cause no traffic.
//   - both: a queued deletion does not hold back the object that a list shows again.
//   - neither: a resync is a consumer's matter.
//   - stage: the synced record follows everything in the list. An event before the list does not
//     make a collection synced, as it does in client-go.
//   - neither: a reader knows by the synced record what is initial.
//   - stage: taking never blocks, the caller waits elsewhere. No watermark covers what is not
//     handed out when a leadership term ends.
//   - caller: an object is transformed once, before the shadow sees it; a failure quarantines the
//     key.
//
// The package is pure: no I/O, no goroutines, no logging; time is an argument. Its types are not
// safe for concurrent use unless they are plain values.
package delta
