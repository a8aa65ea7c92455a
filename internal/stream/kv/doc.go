// Package kv keeps small state next to the log.
//
// In come keys with values and the revisions they replace; out go entries and their changes. A
// Follower keeps up with a bucket and puts back what is known when the bucket is lost.
//
// It may touch link.
package kv
