// Package follow turns the log of each collection into a store of its objects.
//
// In come batches of the log (Log), what is declared (package define) and, at the
// start, checkpoints. Out go snapshots, which never change: one for each batch. A
// Collection is also asked what readers that resume have to know of the log's
// history, and an Observer is told when there is something new. The package alone
// writes to stores, files and the memory budget; it knows no reader and no call.
//
//	log ──Read──> feed ──Batch──> Collection ──Op──> store.Store ──> Snapshot
//	               │ checks, copies   │ delta.Follower: synced, revision, position
//	               └ memory budget    └ history: terms, what was replaced unread
//
// A collection is readable only while its current epoch is synced and no replay is
// running; before that every read fails with COLLECTION_NOT_SYNCED, whatever the
// consistency. One that does not fit into the memory budget is replaced by one that
// holds nothing and says so.
package follow
