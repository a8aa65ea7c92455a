// Package store holds the objects of one collection for many readers and one
// writer, with named indexes, snapshots and a ring of recent changes.
//
// Objects are opaque bytes plus the few facts that were read from them at
// ingest. The store never looks into the bytes and never copies them.
//
// # Shape
//
//	Store ──atomic pointer──> Snapshot ── keys:    tree of slots by (namespace, name)
//	                              │       ── objects: vector slot id -> *Object
//	                              │       ── indexes: name -> tree value -> posting (tree of slots)
//	                              │       ── tombs:   tree of tombstones by (namespace, name)
//	                              └───────── State: revision, position, synced
//
// Every part of a Snapshot is immutable: a batch copies the paths it changes
// and shares the rest, so taking a snapshot is one atomic load, a page token
// can pin one for as long as it likes, and a posting list is handed to readers
// as it is. Because postings point at slots and not at objects, an update that
// changes no index value costs one path in the vector and nothing else (S-04).
//
// # Order
//
// Apply is monotone per key by (epoch, resource version, log sequence): older
// records are refused also after a delete, for as long as the tombstone is
// kept (a fix of C-03). An object that comes back with another UID is seen as
// a delete and an add (a fix of C-08).
//
// # Indexes
//
// Rules S-02 to S-06 of client-go hold, but for two things done on purpose: a
// failing index function never panics, it makes the index answer with a
// *FailedError until the key is repaired, and an unknown index is an
// *UnknownIndexError in every call, ListIndexFuncValues included (S-05).
package store
