// Package testing is for the tests of those who write controllers. It starts the log, the
// index, the queue and a small API server in the test's process, and, given a seed, it is
// as adverse to the code under test as the product may be. Import it by another name:
//
//	import dptest "github.com/deltaplane/deltaplane/client/testing"
//
//	func TestNotes(t *testing.T) {
//		cfg := dptest.Config{Resources: []string{"pods", "configmaps"}}
//		dptest.Run(t, cfg, 30, func(t *testing.T, env *dptest.Env) {
//			ctl := newNotes(env.Index(), env.Queue(), env.API())
//			env.Go(ctl.Run)
//			env.Apply(podOf("a"), podOf("b"))
//			if err := env.Settled(t.Context()); err != nil {
//				t.Fatal(err)
//			}
//			if note := dptest.Get[note](env, "configmaps", "default/a"); note == nil {
//				t.Error("pod a has no note")
//			}
//		})
//	}
//
// # The walk of a test
//
//	env.Apply --> API server --> reflector --> log --> index ------------+--> env.Index()
//	                  ^                         └----> index that lags --+         │
//	                  │                                                            v
//	                  +-- env.API() <----------------------------------- code under test
//	                                                                               │
//	                                                     queue <-- env.Queue() <---+
//
// [Start] starts the parts of "deltaplane up" but its controllers and nodes, and talks to
// them over real connections. The code under test runs by [Env.Go] on [Env.Index],
// [Env.Queue] and [Env.API]: what is done to it is done there. The test itself writes and
// reads by [Env.Apply], [Env.Delete], [Get] and [List], to which nothing is done.
// [Env.Settled] waits until nothing more will run, adverse or not, and then the world has to
// be as the code under test would have it. [Env.Calm] ends what is done to it.
//
// # What is done to the code under test
//
// Nothing that the contracts of the services and of Kubernetes do not allow for. [Rates]
// lists the kinds, and how often each happens.
//
//   - A read that names no least revision may be answered by the replica that lags. One that
//     does, as those of package controller do, is never answered by an older state: it
//     waits, or fails.
//   - A key may run late, and again. A lease may be lost at any moment, and so may all that
//     a finished run would have told the next one, as when its worker was killed.
//   - Connections break. What was sent may have arrived, and is sent again.
//   - A write under a precondition may meet a conflict, be it that the object is as it was
//     again. Any write may fail after it was carried out, and any call before.
//
// Keys of the queue by which replicas of a controller agree on a leader are left alone.
//
// # Seeds
//
// Whether something is done to a call is a function of the seed, of what is called (method
// and key, or path) and of how often that was called before. Nothing is drawn from a
// common sequence, so the order in which goroutines run does not change it. A failing
// seed runs again the same way as far as the code under test makes the same calls: how many
// of one sort it makes may depend on time, and so may what a lease that is lost was used
// for until then. Where that decides whether it fails, -count=10 runs it ten times.
//
// A test that fails prints its seed, the command that runs it again, how often what was done
// to the code under test, and the last of each kind.
package testing
