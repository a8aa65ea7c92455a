// Package workqueue is client-go's rate-limiting work queue as a pure state
// machine with leases: every key waits at most once, is held under at most one
// live token, and runs exactly once more when it was added while held.
//
//	           Add                     Transaction leases it
//	idle ───────────────▶ ready ─────────────────────────▶ leased ◀─┐
//	 ▲  └─AddAfter─▶(due)──▲ ▲                              │  │    │ Extend
//	 │                       └── lease expired, or settled ─┘  │────┘
//	 │                           after an Add meanwhile        │
//	 ├──────────── settled: done, forget, retry (due) ─────────┤
//	 └─ dead ◀──── settled: dead, or retried too often ────────┘
//
// Time moves keys in a transaction behind its operations: those that fell due, those
// whose lease expired, then new leases. Operators pause a queue, bring delayed and
// dead keys forward, revoke leases and delete keys; back-off entries
// (flowcontrol.Backoff) are a name space of their own beside the keys.
//
// A pending due time is kept beside any other state, as client-go keeps its delaying
// heap apart. Several operations and the leases that they make possible form one
// [Transaction], which is atomic and deterministic: the same transactions at the same
// times give the same outcomes, whatever the engine. [Machine] is the in-memory
// engine's state and the oracle for every other engine.
//
// All times are microseconds since 1970 by the store's clock. A Machine is not
// safe for concurrent use.
package workqueue
