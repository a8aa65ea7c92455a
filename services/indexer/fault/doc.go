// Package fault holds what can go wrong with a call to the indexer, besides bad
// requests, and the status that each error becomes. Every room makes its errors
// here, so that the reasons which clients act on stand in one table.
package fault
