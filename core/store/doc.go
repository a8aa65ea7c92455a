// Package store holds the objects of one collection for many readers and one
// writer, with named indexes, snapshots and a ring of recent changes.
//
// Objects are opaque bytes plus the few facts that were read from them at
// ingest. The store never looks into the bytes and never copies them.
//
// # Shape
//
//	Store ──atomic pointer──> Snapshot ── keys:    set of slot ids in key order
//	                              │       ── keyring: vector slot id -> *key
//	                              │       ── objects: vector slot id -> *Object
//	                              │       ── indexes: name -> tree value -> posting (set of slot ids)
//	                              │       ── tombs:   tree of tombstones by (namespace, name)
//	                              └───────── State: revision, position, synced
//
// Every part of a Snapshot is immutable: a batch copies the paths it changes
// and shares the rest, so taking a snapshot is one atomic load, a page token
// can pin one for as long as it likes, and a posting list is handed to readers
// as it is. Because postings hold slot ids and not objects, an update that
// changes no index value costs one path in the vector and nothing else.
//
// # Memory
//
// An object is 96 bytes and shares one allocation of its key with its former
// versions and the keyring; labels, owners and fields are shared between
// objects. A set is a persistent tree of arrays of ids; a small one is the
// array alone, and a set of one the id itself. What an object is filed under is
// not kept: index functions are pure, so an update asks them about the old
// version again, and not even that if both versions share their facts. With
// five indexes and six labels a pod takes about 260 bytes and two heap objects
// beside its payload, which is also what keeps a garbage collection short.
//
// # Order
//
// Apply is monotone per key by (epoch, resource version, log sequence): older
// records are refused also after a delete, for as long as the tombstone is
// kept. An object that comes back with another UID is seen as a delete and an
// add. client-go does neither.
//
// # Indexes
//
// Indexes behave as in client-go, but for things done on purpose: a
// failing index function never panics, the index answers without the key and
// says so with a *FailedError until it is repaired; an unknown index is an
// *UnknownIndexError in every call, ListIndexFuncValues included; and an index
// declared on a full store is built in chunks beside the writer, until then it
// answers with a *BuildingError. Before the first sync, when no read is
// answered, nothing is filed at all: the first sync builds all indexes at once,
// which takes a tenth of the time.
package store
