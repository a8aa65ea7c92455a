// Package limit counts what calls hold while they wait: watches, and the memory
// of requests and answers. What goes beyond a limit, of all clients or of one, is
// refused by the name of its setting. It knows numbers and clients alone.
package limit
