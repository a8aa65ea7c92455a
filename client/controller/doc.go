// Package controller is a controller in thirty lines: it needs the addresses of an
// index and a queue service, and runs in any number of active replicas.
//
//	ctl := controller.New(index, queue, controller.Options{Name: "owner-notes"}).
//		For("pods").
//		Owns("configmaps").
//		Watches("nodes", podsOfNode)
//	err := ctl.Run(ctx, reconcile)
//
// with
//
//	func reconcile(ctx context.Context, req controller.Request) (controller.Result, error) {
//		pod, err := controller.Get[corev1.Pod](ctx, ctl, "pods", req.Key())
//		…
//	}
//
// # The walk of a change
//
//	index --Watch--> feed (one replica leads) --Add--> queue --lease--> reconcile, anywhere
//	                  | position                          |               | reads at the barrier
//	                  +--------> feed queue               +--- barrier <--+ read and written
//
// One replica, the leader of the feed, watches the collections and turns changes into
// keys of the queue. It leads while it holds the lease of a single key in a queue of its
// own, "<queue>/feed", and it saves its position in the state of that key once the keys
// up to there are acknowledged. When it stops or dies, another replica gets the lease
// with the position and goes on from there.
//
// # What a reconciler may rely on
//
//   - A key is reconciled by one replica at a time, and again if it changed meanwhile.
//   - Reads through [Get], [List] and [Controller.Find] with the reconciler's context are
//     at least as new as the change that caused the run, as what the key's previous run
//     read, and as what it wrote, if that was passed to [Controller.Wrote].
//   - No key is lost when a replica, the index or the queue restarts. Every key is added
//     again when the queue's store lost data, the collection began a new epoch, or a watch
//     has a gap. A deletion that nobody could observe in a gap is not among them: what must
//     happen before an object goes needs a finalizer.
//   - A run may be repeated, and a lease may be lost at any moment. The context then ends.
//     Writes need preconditions that make a second one fail.
//
// An error makes the key run again with the queue's back-off; so does a panic, which is
// recovered. [Controller.Run] returns an error only for what cannot get better by waiting.
// Everything else is an [Event]: it is logged, counted and passed to Options.OnEvent.
package controller
