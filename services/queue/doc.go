// Package queue is the queue service: core/workqueue over gRPC, in memory or
// in Redis.
//
// Each queue in use has one dispatcher on each server. It is the group commit:
// whatever calls and streams asked for while the last turn was under way goes
// into the next one, together with the credit of every waiting worker, so that
// under load a turn carries hundreds of operations and idle it carries one at
// once. Nothing polls: a turn follows a call, a credit, a wake-up of another
// replica, or the next due time that the last turn told; a slow fallback turn
// covers a lost wake-up while workers wait.
//
//	unary calls ─┐                     ┌─▶ replies
//	Work streams ┼─▶ dispatcher ─turn─▶│
//	timers ──────┘   (one per queue)   └─▶ leases ─▶ sessions ─▶ Get, Work streams
//
// A session is a worker or producer process; what it holds is remembered by
// the server it talks to, and a stream that breaks shortens its leases to about
// a second, in which the session may resume them anywhere.
package queue
