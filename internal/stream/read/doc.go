// Package read follows logs.
//
// In come positions; out go batches of records in order, the end of a replay, holes, records of
// later builds and lost identity. Log is one reader's, Consume shares a log between replicas and
// keeps in a bucket what they have handled. Nothing that was missed is passed over: a reader whose
// position is gone starts again and says so.
//
// It may touch kv and link, and appends to no log.
package read
