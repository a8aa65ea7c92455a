// Package index holds the figures of the index: reads, latency, memory, cold sync, visibility and
// watches, beside echoes of the same bytes and client-go's informer.
package index
