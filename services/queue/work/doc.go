// Package work hands out keys: it answers Get and serves Work streams.
//
// In come credit, settlements, extensions and, from dispatchers, leases. Out go leases, answers and
// control messages.
//
//	worker ─▶ receive ─┬─▶ credit ─▶ dispatchers ─▶ deliver ─┐
//	                   └─▶ session: settle, extend ──────────┴─▶ outbox ─▶ send ─▶ worker
//
// Of each stream one goroutine receives, one sends and the handler's watches for leases that run
// out, a server that stops and a connection that grows old.
//
// It may touch session, transaction, wire and core.
package work
