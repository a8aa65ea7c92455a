// Package session knows worker and producer processes, and which leases each holds through this
// server; it ends and extends leases for them.
//
// In come checked settlements ([Plan]) and references to leases. Out go their results
// ([SettleResults]), and to the stream that a lease counts against ([Stream]) that it ended.
//
// A lease belongs to the authenticated caller that got it: what another caller asks about it is
// refused ([Leases.Verify]).
//
// It may touch transaction, wire and core. It knows streams by the interfaces it declares only.
package session
