// Package serve speaks the Kubernetes REST protocol.
//
// In come HTTP requests; out go objects, lists, tables, watch streams, discovery documents and
// Status errors. A request is routed (server.go), read (write.go, delete.go, patch.go), carried out
// by package write or read, and answered in the form that was asked for (answer.go, table.go).
//
// It may touch every other package but control. Objects are answered as the bytes that are stored.
package serve
