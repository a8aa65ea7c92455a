// Package testing is for the tests of those who write controllers: it starts the log, the
// index, the queue and a small API server in the test's process, and with a seed is as
// adverse as the product may be. Import it by another name:
//
//	import dptest "github.com/deltaplane/deltaplane/client/testing"
//
//	func TestNotes(t *testing.T) {
//		cfg := dptest.Config{Resources: []string{"pods", "configmaps"}}
//		dptest.Run(t, cfg, 30, func(t *testing.T, env *dptest.Env) {
//			ctl := newNotes(env.Index(), env.Queue(), env.API())
//			env.Go(ctl.Run)
//			env.Apply(podOnNode("a", "n1"), podOnNode("b", "n2"))
//			env.Calm()
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
//	env.Apply --> API server --> reflector --> log --> index --------+--> env.Index()
//	                  ^                         └----> index, lags --+       │ adverse
//	       adverse │  └── env.API() <-- code under test <----------------────┘
//	                                        └-- env.Queue(), adverse --> queue
//
// [Start] starts the parts of "deltaplane up", over real connections. The code under test
// runs on [Env.Index], [Env.Queue] and [Env.API]; the test itself writes and reads by
// [Env.Apply], [Env.Delete], [Get] and [List], to which nothing is done. [Env.Calm] ends
// what is done to the code under test, and [Env.Settled] waits until it has come to rest.
//
// # What is done to the code under test
//
// Nothing that docs/guarantees.md and the contracts do not allow for. A read that names no
// least revision may be answered by the replica that lags; one that does is never answered
// by an older state, and waits or fails. A key may run again, or later. A lease may be lost
// at any moment, and with it what the run would have told the next one. A conditional write
// may meet a conflict, and any call of the API server may fail, before or after it was
// carried out. [Rates] lists the kinds, with how often each happens.
//
// # Seeds
//
// Whether something is done to a call is a function of the seed, what is called (the method
// and its key or path) and how often that was called before. It is not drawn from a common
// sequence, so the order in which goroutines run does not change it. A failing seed
// therefore runs again the same way as far as the code under test makes the same calls; how
// many it makes of one sort may depend on time, and so may when a lease that is to be lost
// is lost. What was done last is printed with a test that failed.
package testing
