// Package node keeps a node's object and lease in the API server: the node is created or
// adopted, its conditions say how it fares, and the lease that it lives. Only one agent
// at a time is a node: the lease names the instance, and a second one is refused.
package node
