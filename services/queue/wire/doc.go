// Package wire is the contract's side of the queue service: it turns requests into operations of
// core/workqueue and what became of them into answers.
//
// In come protobuf messages, as the codec reads them, and facts of core/workqueue. Out go checked
// operations, or an error that names every field that is wrong; answers; and, for any error of the
// service, the status that a caller gets ([Rules]).
//
// It may touch core, the contract and internal/rpc. It knows no queue, no session and no store, but
// for the names of the store's errors, and it waits for nothing.
package wire
