// Package queuetest runs the queue service for tests that speak to it over gRPC, on each of its
// engines, with the client's end of its streams.
package queuetest
