// Package queue is the queue service: core/workqueue over gRPC, in memory or
// in Redis. The package holds the configuration and the wiring; the work is done
// in the packages below it, along the flow:
//
//	work ─────┐ Get, Work streams
//	          ├─▶ session ─▶ transaction ─▶ engine: memory or redis
//	produce ──┘ Add, Produce streams  ▲
//	admin, backoff ───────────────────┤
//	maintain ─────────────────────────┘
//
// Beside the flow are wire, which reads requests and writes answers, metrics and
// history. The doc.go of each says what comes in, what goes out and what it may
// touch; layers_test.go of the module holds the direction.
//
// Each queue in use has one dispatcher per partition on each server. It is the
// group commit: whatever calls and streams asked for while the last transaction was
// under way goes into the next one, together with the credit of every waiting
// worker, so that under load a transaction carries hundreds of operations and idle it
// carries one at once. Nothing polls: a transaction follows a call, a credit, a wake-up
// of another replica, or the next due time that the last transaction told; a slow
// fallback transaction covers a lost wake-up while workers wait.
//
// A session is a worker or producer process; what it holds is remembered by
// the server it talks to, and a stream that breaks shortens its leases to about
// a second, in which the session may resume them anywhere.
//
// # What a server keeps itself
//
// Servers hold no queue: any number of them share one Redis. What each keeps is
// for the callers it has, and gone with it:
//
//   - sessions and the answers to their last settlements;
//   - the history that Inspect shows: the last 8 events of the keys it saw last
//     (Config.HistoryKeys), in rings of fixed size. It is deliberately not in
//     the store, where it would cost every cycle and fill the memory that all
//     replicas share; another replica tells what that one saw;
//   - counters and histograms of what it did, which add up over replicas. The
//     gauges workqueue_depth, deltaplane_queue_delayed, _leases and _dead are of
//     the store and the same everywhere: take one replica's, not the sum.
//
// # Overload and trouble
//
// Operations that wait for a partition's next transactions are bounded
// (Config.MaxPending). Beyond that, calls are refused with RESOURCE_EXHAUSTED
// OVERLOADED and a time to come back; settlements and extensions never are, for
// they are bounded by what was handed out and make room. Answers that list are
// kept to about 1 MiB. What the store cannot do has a reason of its own, see
// the table in wire/status.go; UNAVAILABLE means that nothing was applied.
package queue
