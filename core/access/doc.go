// Package access says who asks and for what, and whether the rules of a policy let them.
//
// An [Identity] is a caller, [Attributes] are what a caller wants to do, in the terms of
// Kubernetes' authorization API, and a [Policy] grants it by rules that mean what they mean in
// RBAC. What a cluster itself decides is asked of it elsewhere: this package does no I/O.
package access
