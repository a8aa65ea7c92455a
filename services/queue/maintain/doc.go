// Package maintain takes care of the store for as long as the service runs: it watches whether the
// store can be used, makes the declared queues, and deletes those that nobody uses.
//
// In come the store's answers and refusals. Out go health, lines of the log and metrics.
//
// It may touch transaction, the engine and core. It answers no caller.
package maintain
