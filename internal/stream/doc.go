// Package stream keeps the delta log in NATS JetStream. It is the only package that speaks NATS.
//
// One stream holds one collection's log, one subject one key, and only the last record of a subject
// is kept, so that reading from sequence 1 is the snapshot and what follows is the tail. A [Writer]
// appends on behalf of one leading reflector and is fenced against every other; [Conn.Read] follows
// a log and reports the end of the replay, holes and lost identity; [Conn.Consume] shares a log
// between the replicas of a trigger; [Bucket] keeps small state; [Conn.Lease] elects the leader
// whose term a Writer writes.
//
// It holds the names that callers use. What happens is in its packages; each says in its
// documentation what comes in, what goes out and what it may touch. Imports point from left to
// right alone:
//
//	         ┌─> read, lease ─> kv ─┐
//	stream ──┤                      ├─> link
//	(Conn)   └─> write ─────────────┘
package stream
