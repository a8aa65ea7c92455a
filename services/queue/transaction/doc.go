// Package transaction runs the queues in use on a server: it gathers what callers and workers ask
// for into transactions of the store, and gives each its part of the outcome.
//
// In come calls ([Call]: operations that belong together) and waiters ([Waiter]: who takes keys, as
// far as its [Credit] goes). Out go replies, leases, and word of what operators did ([Listener]).
//
//	calls ───┐                                    ┌─▶ replies, to Call.Done
//	waiters ─┼─▶ collect ─▶ store ─▶ distribute ─▶┼─▶ leases, to Waiter.Deliver
//	timers ──┘   (fold)                           └─▶ history, metrics
//
// Each partition of a queue has one [Dispatcher], whose goroutine does one transaction after the
// other. What its callbacks are given must not block.
//
// It may touch the engine, core, wire, history and metrics. It knows no stream and no session.
package transaction
