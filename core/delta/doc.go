// Package delta holds the rules of Deltaplane's delta log: how collections, keys and resource versions are named and compared,
// how a record is written into subjects and message headers, what a relist publishes ([Shadow]), how changes wait
// for a slow log ([Stage]), and when a reader may claim a revision ([Follower]).
//
// The package is pure: no I/O, no goroutines, no logging; time is an argument. Its types are not safe for concurrent use
// unless they are plain values.
package delta
