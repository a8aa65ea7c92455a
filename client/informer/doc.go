// Package informer is client-go's shared informer on the index service: a local
// store of the objects of one collection, kept up to date by one watch, and any
// number of handlers that are told what happens to them. The API server is not
// asked anything. A controller written on client-go exchanges its factory:
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
// Any event of an object is an add or an update by what the store has (C-01), the
// store changes first (C-02), a complete state replaces it in one step and deletions
// are told before the rest (C-04), and a filtering handler sees adds and deletions at
// its edge (C-09). Keys, multi-valued indexes, dead values, indexes added to a full
// store, listers (S-01 to S-04, S-06, S-07, S-09). One handler is told one thing after
// another, in order, and never delays another (L-01, L-02). Resync periods are those
// of L-04. A late handler is told of everything there is as initial adds, with no gap
// and nothing twice (L-05). A registration is synced once the informer is and its
// initial adds are finished (L-06), removing one is idempotent (L-08), an informer
// runs once and ends after its handlers (L-09), and waiting names what it waits for
// in vain (L-10).
//
// # What is not
//
//   - C-03: an event that is older than what the store has is dropped.
//   - C-08: an object that was deleted and made again under its name in a gap is a
//     deletion and an add, not an update.
//   - F-01, D-04: a deletion of a key that handlers were not told of is not told.
//   - an object that cannot be decoded is reported, and reads of its key fail,
//     while handlers keep what they were told; it blocks nothing.
//   - S-05: an index function that fails, or panics, makes reads of that index fail,
//     and an unknown index is an error everywhere.
//   - S-10: in place of a cache of own writes, a read waits for a revision:
//     [Store.AtLeast].
//   - Before the first sync a read is an error, not an empty answer.
//   - L-01: the buffer of a handler is bounded. While there is room it keeps every
//     change; beyond that a key's changes are folded into the latest, so that a slow
//     handler costs at most two notifications for each key. [Registration.Lag] shows it.
//   - L-03: an unchanged object is told again to handlers that asked for a resync and
//     are due, and to nobody else: not after a gap, and not to handlers that never
//     asked.
//   - L-07: a panic is counted and reported, the handler is told the next thing, and
//     still becomes synced. Config.CrashOnPanic has the process end, as there.
//   - L-08: what a removed handler was not told can be told first ([Drain]), and
//     waiting for the end from within a callback is an error, not a deadlock.
//   - L-09: a second Run is an error.
//   - Deletions are of one type with a reason, not objects or tombstones.
//   - There are no metrics: [Shared.Status] and [Registration.Lag] have the figures.
package informer
