// Package produce takes keys in: by calls and by Produce streams.
//
// In come adds, and what producers ask and tell about keys. Out go the status of every operation,
// of a stream's batches in the order in which they came.
//
// It may touch session (to refuse the adds of one that was shut down, and a number used for another
// batch), transaction, wire and core.
package produce
