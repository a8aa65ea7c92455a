// Package delta holds the rules of Deltaplane's delta log: how collections, keys and resource versions are named and compared,
// how a record is written into subjects and message headers, what a relist publishes ([Shadow]), how changes wait
// for a slow log ([Stage]), and when a reader may claim a revision ([Follower]).
//
// Shadow and Stage together are what client-go's DeltaFIFO is to an informer: the shadow is its view of what is known, queued or not, the stage
// its queue. Its rules, by the numbers the tests carry:
//
//	D-01  stage   a key keeps its place in line; handed out, it goes to the tail
//	D-02  both    Added, Updated, Deleted, Replaced; Sync is never on the log
//	D-03  stage   consecutive deletions are one, the one with real state; nothing else is merged while there is room
//	D-04  shadow  the deletion of an unknown key is nothing; known includes what is queued
//	D-05  shadow  a deletion inferred from a list has the key, UID, owners, hints and labels, and no object
//	D-06  both    a list: first what differs, then the tombstones; upstream tells unchanged objects again, here they are no traffic
//	D-07  both    a queued deletion does not hold back the object that a list shows again
//	D-08  none    a resync is a consumer's matter
//	D-09  stage   the synced record follows everything the list was; an event before the list does not make it synced, as it does upstream
//	D-10  none    a reader knows what is initial by the synced record
//	D-11  stage   never blocks: who pops waits elsewhere; what is not handed out when a reign ends was vouched for by no watermark
//	D-12  caller  an object is transformed once, before the shadow sees it; a failure quarantines the key
//
// The package is pure: no I/O, no goroutines, no logging; time is an argument. Its types are not safe for concurrent use
// unless they are plain values.
package delta
