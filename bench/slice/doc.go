// Package slice holds the figures of the first end-to-end slice: reads of the index, cycles of the
// queue, deltas and pods of a real API server until they are served.
package slice
