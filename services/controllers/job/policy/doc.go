// Package policy holds the rules by which a Job judges its failed pods (podFailurePolicy) and
// succeeds before all of its indexes have (successPolicy). It does no I/O.
package policy
