// Package store keeps objects under one growing resource version.
//
// In come commits, each of which names the version it replaces; out go snapshots, the recent events
// of a resource, and a notification of every commit. With a directory each commit is in a
// write-ahead log before it is visible, and the log is read back at start.
//
// It knows kinds, for encoding, and writes to its directory alone. It never waits for a reader:
// watchers pull from the bounded history of a table, and one that falls out of it gets an error.
package store
