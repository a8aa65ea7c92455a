// Package read answers reads of objects and of index values.
//
// In come requests; out go messages and pages made from snapshots. No payload is
// decoded to answer a read, but for field masks and views of metadata: what selectors
// and indexes need was read once at ingest, and answers are the stored bytes behind a
// hand-written header (package message). The package keeps the snapshots that page
// tokens name, for a while; it writes to nothing else.
//
// A collection is readable only while it is synced; see package follow. An object
// whose bytes cannot be used is an error on its key: Get answers KEY_QUARANTINED,
// lists carry the key without a payload.
package read
