// Package indexer serves reads of collections from memory.
//
// One goroutine per collection follows its log, turns records into store
// operations and publishes a snapshot per batch; gRPC handlers only read
// snapshots. No payload is decoded to answer a read, but for field masks and
// views of metadata: what selectors and indexes need is read once at ingest, and
// responses are the stored bytes behind a hand-written header (see wire.go).
//
//	log ──Read──> collection.apply ──Batch──> store.Store ──Snapshot──> handlers
//	                 │  extract.Extractor: labels, owners, fields └──Change──> watchers
//	                 └─ delta.Follower: synced, revision, position
//
// A collection is readable only while its current epoch is synced and no
// replay is running; before that every read fails with COLLECTION_NOT_SYNCED,
// whatever the consistency. An object whose bytes cannot be used is an error on
// its key: Get answers KEY_QUARANTINED, lists carry the key without a payload.
package indexer
