// Package plane is a whole Deltaplane beside an API server, each service in a child, with kubelets
// that only keep leases: what the families of nodes and of the agent begin with.
package plane
