// Package chaos holds the run of the queue under faults: real worker, producer,
// queue server and Redis processes are killed, stopped and cut off while they
// work, every process writes down what it did, and [history] is asked which
// promise was broken.
//
// The normal test run has a short form. DELTAPLANE_CHAOS=5m makes it as long;
// DELTAPLANE_CHAOS_SEED repeats the order of the faults, and
// DELTAPLANE_CHAOS_DIR keeps the histories.
//
// [history]: https://pkg.go.dev/github.com/deltaplane/deltaplane/test/chaos/history
package chaos
