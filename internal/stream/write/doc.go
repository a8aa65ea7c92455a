// Package write appends to a log for one term.
//
// In come a term and records; out go acknowledgements, or the error that ends the writer. A new
// writer fences the log against what an earlier one may have under way, and begins an epoch where
// the log is not the one that was written. An append whose acknowledgement was lost is resolved by
// the log's end.
//
// It may touch link.
package write
