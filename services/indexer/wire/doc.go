// Package wire is the IndexService on the wire.
//
// In come calls, unary, watches and tagged ones on Query streams: it reads the hot
// requests without allocating, hands them to packages read and watch, counts what
// answers hold until they have been sent, and has the codec send them as they were
// written. It decides nothing about what is answered, but for declared indexes and
// the list of collections, which it puts together from what the packages say.
package wire
