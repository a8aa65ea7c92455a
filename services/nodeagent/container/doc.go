// Package container holds what the node agent knows of the containers on its
// node, as it was observed over the CRI. It is the vocabulary that the agent's
// parts share: the pod lifecycle event generator reads it, the pod workers
// decide by it, the runtime manager acts on it, and the status written to the API
// server is made from it.
//
// Everything here is a value that nobody changes once it was handed out.
package container
