// Package console serves the pages that show the pipeline live, and what they speak with: the
// ConsoleService of proto/deltaplane/console, by Connect, on one HTTP port.
//
// In come requests of browsers with a caller's bearer token. Out go the pages, one stream for each
// tab, and calls to reflector, index and queue with that token and no rights of the console's own.
//
// Its packages follow the way of a request: the service checks where a request comes from, session
// keeps what a tab shows, view asks and watches for it, and caller calls services as the caller.
package console
