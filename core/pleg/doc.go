// Package pleg holds the rules of the pod lifecycle event generator: what a
// container's change of state is worth telling, what has been reported already, and
// how fresh a generator's knowledge must be. It asks no runtime and keeps no
// time.
//
// A container (and a sandbox, which counts as one) is in one of four states, and
// every step of it that is observed is worth:
//
//	old \ new      running   exited   unknown   non-existent
//	running        -         Died     Changed   Died + Removed
//	exited         Started   -        Changed   Removed
//	unknown        Started   Died     -         Died + Removed
//	non-existent   Started   Died     Changed   -
//
// Changed is a reason to look at the pod, and no event is sent for it.
//
// [Records] holds per pod what was seen last and what of it has not been
// delivered yet. Knowledge comes in two ways: by asking (a list of all pods, the
// status of one) and by being told (an event of the runtime). An answer may be
// older than what was reported while it was under way, so that every inspection gets a
// [Stamp] when it is asked, and an answer never takes back what was learnt after
// its inspection. That, and not a clock, is what keeps a list and an event that
// race from contradicting each other.
package pleg
