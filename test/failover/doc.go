// Package failover kills and stops the processes of the reflector, and the servers of the log,
// while a scripted source changes, and checks with a reader of its own that nobody notices: no
// list, no gap, no record of an old term.
//
// DELTAPLANE_FAILOVERS=200 makes it 200 kills, half as many stops and half as many orderly ends.
package failover
