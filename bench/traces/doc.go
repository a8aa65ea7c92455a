// Package traces holds the figure of what tracing costs: the CPU of a change on its way from the
// API server through log, index, trigger and queue to the reconcile and its write.
package traces
