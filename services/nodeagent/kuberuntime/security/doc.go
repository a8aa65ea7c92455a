// Package security turns the security contexts of pods and containers into those of the CRI. In
// come specs and the image's user, out come messages for the runtime or an error that names what
// cannot be had. It does no I/O and knows nothing of its callers.
package security
