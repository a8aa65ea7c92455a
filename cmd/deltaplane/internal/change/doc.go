// Package change holds the commands that write to a cluster's API server: apply, delete, node and
// demo.
//
// In come manifests and names of nodes. Out go writes to the API server; the index and the queues
// are only read, to tell what came of them.
package change
