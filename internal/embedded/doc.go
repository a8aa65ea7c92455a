// Package embedded runs the servers Deltaplane stores things in, without an
// installation: NATS inside this process, Redis as a child of it. deltaplane up
// and the tests use it; production points at servers of its own.
package embedded
