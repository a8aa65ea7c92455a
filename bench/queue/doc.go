// Package queue holds the figures of the queue: cycles, latency, timers, memory, recovery and back-
// off, on Redis and in memory, beside asynq and the ceilings of the wire.
package queue
