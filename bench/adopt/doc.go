// Package adopt holds the figures of controllers that others write on client/controller: how
// replicas share the work, what a kill costs, how soon a change is reconciled, and what thirty of
// them ask of the API server. The peer is client-go's informer and work queue.
package adopt
