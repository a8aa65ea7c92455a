package answer

import "errors"

var (
	// errBehind ends the watch of a reader that is too slow: it goes on behind what it has got.
	errBehind = errors.New("gateway: the reader is too slow")
	// errUnknown ends a watch after a deletion of which nobody knows the object.
	errUnknown = errors.New("gateway: a deleted object is not known")
)
