// Package cri is the node agent's door to a container runtime: the Kubernetes
// Container Runtime Interface (runtime.v1) as a client with time limits, room
// for big answers and errors that can be distinguished.
//
// A [Client] speaks over a Unix socket ([Dial]) or over any connection that it
// is given ([NewClient]), which is how a runtime in the same process is used. A
// connection that breaks is made again by itself, within seconds of the runtime's
// return; calls in between fail at once, and [IsUnavailable] knows their errors.
// Only a socket that takes connections and then says nothing holds the first call, for
// five seconds. A runtime that stops to answer on a connection which stands is found
// out by each call's time limit.
package cri
