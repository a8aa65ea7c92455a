package delta

import (
	"fmt"
	"time"
)

// Type says what a delta did to its key. Added, Updated, Replaced and Sync are all upserts: a
// reader decides by what it holds, not by the type.
type Type uint8

// The delta types. The zero value is not a type.
const (
	Added Type = iota + 1
	Updated
	Deleted
	Replaced // seen in a list
	Sync     // looked at again; never on the log
	Bookmark // moves only the watermark; in the log it is a progress record
)

var typeNames = [...]string{Added: "ADDED", Updated: "UPDATED", Deleted: "DELETED", Replaced: "REPLACED", Sync: "SYNC", Bookmark: "BOOKMARK"}

// String gives the upper-case name used in headers, such as "ADDED".
func (t Type) String() string {
	if t >= Added && int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("TYPE(%d)", uint8(t))
}

// Kind says what a record in the log is for. The zero value is not a kind.
type Kind uint8

// The record kinds. Only KindDelta has a key and a payload.
const (
	// KindDelta is a change of one key.
	KindDelta Kind = iota + 1
	// KindProgress moves only the watermark.
	KindProgress
	// KindSynced ends a complete list of the epoch; RV is the list's.
	KindSynced
	// KindTerm opens a leader's term; Start is where the term began.
	KindTerm
	// KindLiveness says every few seconds that the reflector is current.
	KindLiveness
	// KindFence is written before a term record to push the log beyond every append a deposed leader
	// may still have in flight.
	KindFence
	// KindOrigin is written once, before the first term record, and never again: it stays the first
	// record of a log for as long as nobody takes records away from its start.
	KindOrigin
)

var kindNames = nameKinds()

// String gives the lower-case name used in headers and control subjects, such as "progress".
func (k Kind) String() string {
	if k >= KindDelta && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// BeginsTerm reports whether a leader writes records of the kind before it has spoken to the
// source: they say nothing of what lives, nor that the log is current.
func (k Kind) BeginsTerm() bool { return k == KindFence || k == KindTerm || k == KindOrigin }

// DeleteReason says how a deletion became known. Empty on anything but a tombstone.
type DeleteReason string

// The delete reasons.
const (
	// Observed: the API server sent the deletion; the payload is the object's last state.
	Observed DeleteReason = "observed"
	// Inferred: a complete list did not hold the key any more; there is no payload and RV is the
	// list's.
	Inferred DeleteReason = "inferred"
	// FilteredOut: the object still exists but left the collection's selectors.
	FilteredOut DeleteReason = "filtered_out"
)

// Known reports whether the reason is one of those above. A later build may write others: the key
// is gone all the same.
func (r DeleteReason) Known() bool { return r == Observed || r == Inferred || r == FilteredOut }

// Owner is one owner reference. It is comparable.
type Owner struct {
	Kind, Name, UID string
	// Controller reports whether the reference is the managing one. That of an owner the key no longer
	// has is not, so that a key nobody controls any more is seen to be free.
	Controller bool
}

// Scope says where the keys of a collection live. The zero value is not known.
type Scope string

// The scopes.
const (
	// Namespaced: every key is "namespace/name".
	Namespaced Scope = "namespaced"
	// ClusterScoped: every key is "name".
	ClusterScoped Scope = "cluster"
)

// EncodingJSON is how objects are encoded: JSON as the API server sent it, less what a
// transform strips, with kind and apiVersion present.
const EncodingJSON = "json"

// EncodingUnreadable marks a delta whose object could not be taken in by the reflector: there is no
// payload, and what a reader holds for the key is out of date. The key is quarantined until a
// readable version or its deletion follows.
const EncodingUnreadable = "unreadable"

// EncodingSealed marks a payload in [EncodingJSON] that is encrypted in the log. Readers of the log
// decrypt it: they give it as JSON, or stand still without the key.
const EncodingSealed = "aes-gcm"

// SchemaVersion is the least version that a reader must know in order to read a record as
// [Record.Header] writes it. It is raised only for what an older reader would misread; what is
// added otherwise is a header, which older readers pass over.
const SchemaVersion = 1

// Record is one record of a collection's log. Every record carries Epoch, Term and Watermark; the
// other fields depend on Kind. Slices and maps of a record that was handed out must not be changed.
type Record struct {
	Kind       Kind
	Collection Collection
	Key        Key
	UID        string
	Type       Type
	// RV is the object's resource version, the deletion's for a tombstone, and the list's for a synced
	// record.
	RV    RV
	Epoch uint64
	// Term is the leader's term. Terms grow; 0 is never written.
	Term uint64
	// Watermark is W: every event at or below it is in the log at or before this record. Empty
	// before the first complete list.
	Watermark RV
	// Hash is [Hash] of the payload; 0 when there is none.
	Hash uint64
	// Checksum is [Checksum] of the payload; [Record.Header] makes it when it is 0, readers set it.
	// Logs of older versions have none.
	Checksum uint32
	// Payload is the object in Encoding. It is nil in headers-only reads and in inferred tombstones.
	Payload  []byte
	Encoding string
	// Sealed names the key that the payload is encrypted with in the log; empty where it is not.
	Sealed string
	// Generation is metadata.generation; 0 when the object has none.
	Generation int64
	// Owners, Hints and Labels hold what the key has had within the tombstone TTL, current values
	// included, so that a previous owner is woken although the log keeps only the last record. Hints
	// are index hints such as "node".
	Owners []Owner
	Hints  map[string][]string
	Labels map[string][]string
	// Overflow says that Owners, Hints or Labels met their cap and are incomplete: wake everything.
	Overflow     bool
	DeleteReason DeleteReason
	// Scope is that of the collection as the source's discovery says (KindSynced and KindLiveness).
	// Logs of older versions have none.
	Scope Scope
	// Names are what the collection's resource is called beside its plural, as the source's discovery
	// says (KindSynced and KindLiveness). They are as [OtherNames] returns them. Logs of older
	// versions have none.
	Names []string
	// Dropped are the paths of the fields that the source's spec leaves out of every object
	// ([EverythingButMetadata] for all but metadata), on KindSynced and KindLiveness. It is nil where
	// nobody says, as in logs of older versions, and empty where nothing is left out.
	Dropped []string
	// All says that the source's spec chooses no objects by namespace or selector, on KindSynced and
	// KindLiveness: every object of the resource is in the log. Logs of older versions do not say it.
	All bool
	// Start is the first sequence of the term, which is that of its first fence record (KindTerm
	// only).
	Start uint64
	// Live is how many keys live in the log once r is in it; it means nothing unless Counted is set. A
	// reader that has applied the whole log up to r and holds another number has not met what somebody
	// took away.
	Live    int
	Counted bool
	// Digest is that of the keys that live once r is in the log; it means nothing unless Digested is
	// set. A reader that has applied the whole log up to r and holds something else was not sent all
	// of it. Logs of older versions have none.
	Digest   Digest
	Digested bool
	// Writer is the identity of the process that leads (KindTerm and KindLiveness).
	Writer string
	// Build is the version of its program (KindTerm only). Logs of older versions have none.
	Build string
	// Source tells the cluster that is mirrored from every other (KindTerm only); empty when it is not
	// known.
	Source string
	// Needs is the highest version that a record of the term may need (KindTerm only); 0 means 1.
	Needs uint64
	// ObservedAt is when the reflector read the change, PublishedAt when it handed it to the log.
	ObservedAt, PublishedAt time.Time
	// Trace is a W3C traceparent, or empty.
	Trace string
	// Sequence is the record's place in the log; readers set it.
	Sequence uint64
	// StoredAt is when the log took the record, as this process's clock would have told; readers set
	// it. It is what a tombstone's TTL counts from, whatever the clock of the reflector says.
	StoredAt time.Time

	// Step is what r adds to the number of living keys, 1, 0 or -1: [Shadow] tells [Stage], and nobody
	// else.
	Step int8
	// Change is what r adds to the digest, as Step.
	Change Digest
}

// Position is the place just after r has been applied.
func (r *Record) Position() Position {
	return Position{Epoch: r.Epoch, Sequence: r.Sequence, Term: r.Term}
}

// Stamp is the part of a record that orders the versions of one key.
func (r *Record) Stamp() Stamp { return Stamp{Epoch: r.Epoch, RV: r.RV} }

// Tombstone reports whether r is a deletion.
func (r *Record) Tombstone() bool { return r.Kind == KindDelta && r.Type == Deleted }

// Size is an estimate of the bytes r occupies on the wire and in memory.
func (r *Record) Size() int {
	n := 512 + len(r.Key) + len(r.UID) + len(r.Payload)
	for _, o := range r.Owners {
		n += 16 + len(o.Kind) + len(o.Name) + len(o.UID)
	}
	for _, m := range [...]map[string][]string{r.Hints, r.Labels} {
		for k, vs := range m {
			for _, v := range vs {
				n += 16 + len(k) + len(v)
			}
		}
	}
	return n
}

// Stamp orders the versions of one key across restarts of a collection's history.
type Stamp = Revision

// Apply is the monotone rule for readers: a record with stamp next may replace what is held at
// stamp held. Equal stamps apply, because the log's order decides there (a changed transform
// republishes the same resource version).
func Apply(held, next Stamp) bool { return next.Compare(held) >= 0 }

// Recreated reports whether a newer record with uid next is another object under the same key.
// Unknown UIDs are not taken as a change.
func Recreated(held, next string) bool { return held != "" && next != "" && held != next }
