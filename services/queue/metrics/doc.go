// Package metrics counts what queues do, and tells at a scrape what they hold.
//
// In come counts of transactions, leases and settlements ([Queue], [Set]), and functions that a
// scrape asks ([Sources]). Out go Prometheus series, and a queue's own counts ([Activity]).
//
// It may touch core and the names of the store's errors. It asks no store and no session itself.
package metrics
