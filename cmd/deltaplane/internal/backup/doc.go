// Package backup keeps what is nowhere else in a file and puts it back: reflections that were
// added, indexes that were declared, queues with their keys.
//
// In come the answers of the services, or the lines of such a file. Out go a file, or calls that
// bring back what is missing. It never touches NATS or Redis itself, so the rights of its caller
// apply.
package backup
