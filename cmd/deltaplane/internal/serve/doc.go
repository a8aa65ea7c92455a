// Package serve holds the commands that run services: up, everything in one process, and serve, one
// of them.
//
// In come flags. Out go running services, which end when the context does; a stop is clean, in the
// reverse order of the start. It asks a service only to tell when it is ready.
package serve
