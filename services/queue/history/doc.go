// Package history remembers what happened last to the keys that this server saw last.
//
// In come transactions with their results and who asked for them. Out come the events of a key, for
// people: Inspect shows them.
//
// It may touch core and wire. It holds a bounded amount of memory and waits for nothing but its
// own lock.
package history
