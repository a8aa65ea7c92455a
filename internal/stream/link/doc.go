// Package link is a connection to NATS and what the log is on it.
//
// In come settings; out go the connection, the state of a collection's log (Tail), the streams that
// hold logs, and the errors by which the other packages say what went wrong. The connection heals
// itself, leaves a server that takes nothing, and is shared out among its writers by a window.
//
// It knows no reader, no writer and no lease; of ours it may touch core alone.
package link
