// Package logs holds the figures of the reflector and the log: syncs, requests, latency, takeovers
// and slow links, beside client-go's informer. What readers got is audited against what the source
// sent.
package logs
