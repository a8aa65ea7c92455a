// Package client is the Go SDK of Deltaplane: what a controller is written on
// in place of client-go's informers and work queues.
//
//	delta log ──Trigger──► Queue.Add ──► QueueService ──► Worker ──► Reconciler
//	                                                                   │ reads at item.AtLeast
//	                                                                   ▼
//	                                                                 Index
//
// A [Trigger] turns records of the delta log into keys. A [Worker] leases keys
// and hands them to a [Reconciler], N at a time. The reconciler reads the
// [Index] at the item's barrier, writes to the API server, and returns what it
// read at and wrote, so that the next worker of the same key sees no less.
//
// Beside these, a [Producer] adds keys of many goroutines over one stream, a
// [Puller] leases keys for callers that ask for them one by one, [Backoff] keeps
// delays by id, and package client/workqueue is client-go's work queue, for
// controllers that were written on it. Package client/testing starts all of Deltaplane
// for the test of a controller.
//
// A notification is a field On... of the configuration it belongs to: nil is
// not called, and a function must be quick and safe for concurrent use.
//
// Everything is level-triggered: a key says "look again", never what happened.
// A worker may lose its lease at any moment (a pause, a network split); its
// context then ends, and whatever it still sends with its token changes nothing.
// Writes that must happen once therefore need names or preconditions that make
// a second one fail.
package client
