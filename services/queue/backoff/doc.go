// Package backoff answers the calls of the back-off of ids, a name space beside a queue's keys.
//
// In come ids and times of events. Out go delays.
//
// It may touch transaction, wire and core.
package backoff
