// Package grant asks whether callers may read what their requests name.
//
// It knows which rights a read of a collection takes, and leaves it to the authority whether the
// caller has them. Readers and watches ask it once they know the collection and before they look
// into it.
package grant
