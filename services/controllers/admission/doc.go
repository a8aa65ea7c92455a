// Package admission is a mutating admission webhook that gives pods the default
// tolerations of not-ready and unreachable nodes (by core/taint), for
// API servers whose own plug-in is off or whose seconds cannot be set. It is a part
// of "deltaplane serve controllers", which --admission-listen switches on.
//
// It speaks AdmissionReview v1 over TLS. A review of a pod that lacks nothing, of
// a sub-resource, or of another operation than CREATE and UPDATE is allowed as it
// is; asked twice it answers nothing the second time. The configuration it is
// installed with ([Manifest]) lets pods through when it cannot be reached.
package admission
