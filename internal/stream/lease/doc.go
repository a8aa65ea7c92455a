// Package lease elects the process that writes a log.
//
// In come the names of leases and who asks for them; out go leases whose term grows with every
// grant. A contest waits for a lease, a tenure renews it, and the pings between processes say whose
// holder is gone. A lease decides when a process takes over, never who may write: that is the fence
// of package write.
//
// It may touch kv and link. Its traffic has a connection of its own, so that it does not wait
// behind appends.
package lease
