// Package define keeps the indexes of a collection: those that are built in, and
// those that clients have declared.
//
// In comes what is declared, from a bucket of the log (Declarations), and how much
// memory there is (Room). Out go the plan by which objects are read at ingest, the
// indexes of the collection's store, and what is said of them. It adds and removes
// indexes of the store and swaps objects for the same with other fields; it puts
// and deletes none.
//
//	bucket ──> Declarations ──> Indexes.Declare ──plan──> ingest
//	                                 └──wakes──> Build ──> fields of objects ──> indexes of the store
package define
