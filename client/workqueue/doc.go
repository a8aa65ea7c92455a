// Package workqueue is client-go's work queue kept by a queue service: its
// [Queue] satisfies client-go's workqueue.TypedRateLimitingInterface[string], so
// that a controller written on client-go shares its keys among any number of
// replicas, and keeps delays and back-off over restarts, by exchanging one
// constructor:
//
//	queue, err := workqueue.New(ctx, conn, workqueue.Config{Queue: "dev/my-controller"})
//
// What is the same: a key waits at most once, is held by one worker at a time
// (of all replicas), and a key added while it is held runs once more (Q-01,
// Q-02); Len, AddAfter, AddRateLimited, Forget and NumRequeues count and wait as
// there (Q-06, Q-07, Q-10, RL-01 to RL-06); a shut down queue ignores Adds and
// hands out what is ready.
//
// What is not, beside what a network brings:
//
//   - The interface has no errors. Whatever cannot be done is told to
//     Config.OnError and tried again until the context of New ends, unless trying
//     again is useless (a key of over 1,024 bytes).
//   - Adds do not wait for the service. They are sent in order; Len, NumRequeues
//     and a Get of a queue that is shutting down see the adds before them.
//   - Done of a key that is not held does nothing (Q-03 fixed).
//   - ShutDown and ShutDownWithDrain concern this process. What waits, and what is
//     delayed, stays for the other replicas and for the next start (Q-09 fixed),
//     and a pending limiter delay is not forgotten.
//   - The rate limiter is the queue's, see Config.Settings, and is shared by all
//     replicas.
//   - A process that is cut off, or stopped for longer than a lease, loses its
//     keys. [Queue.Context] tells whoever holds one.
//   - Metrics are the service's, under client-go's names.
package workqueue
