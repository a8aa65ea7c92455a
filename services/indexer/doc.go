// Package indexer serves reads of collections from memory, and tells what happens to
// them.
//
// It holds the configuration and the wiring. What happens is in its packages, along the
// way of a delta and of a call; each says in its documentation what comes in, what goes
// out and what it may touch. Imports point from left to right alone:
//
//	                      ┌─> read ──┬─> filter, consistency ─┐
//	indexer ─> wire ──────┤          │                        ├─> follow ─> define ─> definition
//	(service, config)     └─> watch ─┴─> message              │     │          └────> extract
//	                                                          │     ├─> checkpoint
//	                           limit, fault <── all of them ──┘     └─> payload ─> pages
//
// One goroutine per collection follows its log, turns records into store operations and
// publishes a snapshot per batch (follow); calls only read snapshots.
package indexer
