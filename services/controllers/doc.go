// Package controllers runs Deltaplane's own controllers, written on the public
// SDK: for each of them a trigger that turns the delta log into keys, a worker
// that leases keys, and a reconciler that reads the index at the key's barrier
// and writes to the API server.
//
//	log ──trigger──► queue ──worker──► reconciler ──► API server
//	                                     │ at least the barrier
//	                                     ▼
//	                                   index
//
// Any number of replicas work side by side: the log's consumer and the queue are
// shared, and nothing that matters lives in the process. A stop has two steps:
// no more keys are leased, and after a grace period what still runs is cancelled
// and given back.
package controllers
