// Package informer is client-go's shared informer on the index service: a local
// store of the objects of one collection, kept up to date by one watch, and any
// number of handlers that receive what happens to them. It asks the API server
// nothing. A controller written on client-go exchanges its factory:
//
//	index := client.NewIndex(conn)
//	factory := informer.NewFactory(index, informer.FactoryConfig{Resync: 10 * time.Hour})
//	pods, err := informer.For(factory, informer.Config[*corev1.Pod]{
//		Collection: "dev/pods.v1", Decode: informer.JSON[corev1.Pod],
//	})
//	…
//	reg, err := pods.AddHandler(informer.HandlerFuncs[*corev1.Pod]{
//		AddFunc: func(pod *corev1.Pod, initial bool) { queue.Add(pod.Namespace + "/" + pod.Name) },
//	}, informer.HandlerOptions{})
//	factory.Start(ctx)
//	err = informer.WaitFor(ctx, reg)
//	pod, found, err := pods.Store().Get("default/web-0")
//
// # The walk
//
//	Source.Watch ──event──> decode ──> stage (a state, until it is complete)
//	                           │          │ replaces all in one step
//	                           └──live────┴──> Store ──note──> buffer of each handler ──> Handler
//	                                             │ resync, to handlers that are due ──^
//	                                             └──> Get, ByIndex, AtLeast
//
// One goroutine follows the watch, one per handler calls it. A stream that breaks is
// resumed by its position on any replica. When that is lost, the informer tells the
// server what it has and is sent the differences; keys that are gone are deletions
// whose reason says so. Until the state is complete the store stays as it was. It
// never becomes older than it was.
//
// # What is the same
//
// Whether an event is an add or an update is decided by what the store has. The store
// changes before the handlers are called, and a complete state replaces it in one step,
// with the deletions delivered first. A filtering handler sees adds and deletions at the
// filter's edge. Keys, multi-valued indexes, indexes added to a full store and listers
// work as in client-go. A handler is called in order, one change at a time, and never
// delays another. A late handler gets every stored object as an initial add, without a
// gap or a duplicate. A registration is synced once the informer is synced and its
// initial adds are finished. Removing a handler is idempotent. An informer runs once and
// ends after its handlers, and a wait that ends early names what is not synced.
//
// A resync period below a second becomes one second. Before the start the shortest period
// becomes the check period; after it, a shorter period is raised to the check period. An
// informer without a check period at its start resyncs no handler.
//
// # What is not
//
//   - An event that is older than what the store has is dropped.
//   - An object that was deleted and recreated under its name in a gap is a
//     deletion and an add, not an update.
//   - A deletion of a key that the handlers never saw is not delivered.
//   - An object that cannot be decoded is reported, and reads of its key fail, while
//     handlers keep what they saw last; it blocks nothing.
//   - An index function that fails, or panics, makes reads of that index fail, and
//     an unknown index is an error everywhere.
//   - In place of a cache of own writes, a read waits for a revision:
//     [Store.AtLeast].
//   - Before the first sync a read is an error, not an empty answer.
//   - The buffer of a handler is bounded. While there is room it keeps every change;
//     beyond that a key's changes are folded into the latest, so that a slow handler
//     costs at most two notifications for each key. [Registration.Lag] shows it.
//   - An unchanged object is delivered again only to handlers with a resync period that
//     are due: not after a gap, and not to handlers without one.
//   - A panic is counted and reported. The handler goes on with the next change and still
//     becomes synced. Config.CrashOnPanic ends the process, as client-go does.
//   - What a removed handler has not seen yet can be delivered first ([Drain]), and
//     waiting for the end from within a callback is an error, not a deadlock.
//   - A second Run is an error.
//   - Deletions are of one type with a reason, not objects or tombstones.
//   - There are no metrics: [Shared.Status] and [Registration.Lag] have the figures.
package informer
