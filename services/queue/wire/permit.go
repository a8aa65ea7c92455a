package wire

import "context"

// The verbs of queues. Backoffs have get and update.
const (
	// VerbAdd adds keys.
	VerbAdd = "add"
	// VerbWork leases keys, and does what a lease is for.
	VerbWork = "work"
	// VerbGet looks at a queue and its keys.
	VerbGet = "get"
	// VerbList names queues.
	VerbList = "list"
	// VerbAdminister makes, changes and deletes queues, and operates on keys of others.
	VerbAdminister = "administer"
	// VerbUpdate changes backoffs.
	VerbUpdate = "update"
)

// Permit asks whether the caller may do something with a queue. Nil permits everything.
type Permit func(ctx context.Context, verb, queue string) error

// Ask returns the error of a call that is not permitted.
func (p Permit) Ask(ctx context.Context, verb, queue string) error {
	if p == nil {
		return nil
	}
	return p(ctx, verb, queue)
}
