// Package workqueue is client-go's work queue kept by a queue service: its
// [Queue] satisfies client-go's workqueue.TypedRateLimitingInterface[string], so
// that a controller written on client-go shares its keys among any number of
// replicas, and keeps delays and back-off over restarts, by exchanging one
// constructor:
//
//	queue, err := workqueue.New(ctx, conn, workqueue.Config{Queue: "dev/my-controller"})
//
// What is the same: a key waits at most once, is held by one worker at a time
// (of all replicas), and a key added while it is held runs once more; Len,
// AddAfter, AddRateLimited, Forget and NumRequeues count and wait as there; a
// shut down queue ignores Adds and hands out what is ready.
//
// What is not, beside what a network brings:
//
//   - The interface has no errors. Whatever cannot be done goes to Config.OnError (without
//     one to the log) and is tried again until the context of New ends, unless trying
//     again is useless (a key of over 1,024 bytes).
//   - Add, AddAfter, AddRateLimited and Forget never wait for the service, and need memory
//     by distinct key: what is called for before it is sent is folded. Every
//     rate-limited add still counts. Len, NumRequeues and a Get of a queue that is
//     shutting down wait for the service, and see the calls before them.
//   - What was called for and is not sent lives in this process alone. After a shutdown it
//     is still sent. Once the context of New has ended and the keys in hand are done it
//     has 3 s; what is left then is dropped, and OnError is called with each key. A
//     process that is killed drops it without a word.
//   - Done of a key that is not held does nothing.
//   - ShutDown and ShutDownWithDrain concern this process. What waits, and what is
//     delayed, stays for the other replicas and for the next start,
//     and a pending limiter delay is not forgotten: AddAfter and AddRateLimited of a key
//     in hand work during a shutdown too. A key that this process added while it had it
//     in hand comes again, though Get said before that there is nothing, unless another
//     replica takes it first. If nobody calls Get after the Done of such a key, it stays in
//     hand until the context of New ends, and [Queue.Wait] lasts as long.
//   - The rate limiter is the queue's, see Config.Settings, and is shared by all
//     replicas.
//   - A process that is cut off, or stopped for longer than a lease, loses its
//     keys. The context of [Queue.Context] ends for the holder of one.
//   - Metrics are the service's, under client-go's names.
package workqueue
