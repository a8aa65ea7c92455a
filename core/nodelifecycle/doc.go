// Package nodelifecycle holds the rules by which a node is found dead and kept
// away from: how long it has been silent, what its conditions become, which taints
// it carries, and how fast a zone's nodes may be tainted. It reads nothing and
// keeps no time.
//
// Silence is measured on the clock of the collections, not on the wall: a node is
// silent for as long as its collections are known to have been followed without a
// gap and brought no heartbeat. While nobody follows them no silence grows, and
// after a gap it begins again at zero.
package nodelifecycle
