package why

import (
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Facts are what is known of a key and of what surrounds it. Zero values are what nobody said.
type Facts struct {
	Queue, Key string
	// Now is the time by the clock of this machine.
	Now time.Time
	// Silent are the parts that did not answer.
	Silent []Silence
	// NoQueue says that the queue does not exist; There says which do.
	NoQueue bool
	There   string

	Item    Item
	History []Event // newest first

	// The queue, while QueueKnown.
	QueueKnown     bool
	Config         workqueue.Config // defaults filled in
	Counts         workqueue.Counts
	Paused, Closed bool
	HeldUntil      time.Time // nothing is handed out before; zero for now
	StoreTime      time.Time // the store's clock at Now
	Workers, Free  int       // of the server that answered
	Holder         *Holder   // nil where that server does not know it
	RefusesAdds    string    // the reason; empty while adds are taken
	Step           *Step     // nil for none

	// Collections are what the index serves; nil where it did not answer.
	Collections []Collection
	// Reflections are what the reflector mirrors; nil where it did not answer.
	Reflections []Reflection
	// Written are what the last run wrote, with what the index shows of it by now.
	Written []Written
}

// The parts that are asked.
const (
	PartQueue     = "queue"
	PartIndex     = "index"
	PartReflector = "reflector"
)

// Silence is a part that did not answer, and why.
type Silence struct {
	Part string `json:"part"`
	Why  string `json:"why"`
}

// Item is a key as the store has it.
type Item struct {
	State        workqueue.State
	Holder       string
	Deadline     time.Time
	Requeues     int
	Attempt      int
	Priority     int
	AddedAt      time.Time
	ReadyAt      time.Time
	DelayedUntil time.Time
	Barrier      workqueue.Barrier
	Reason       string
	Holders      []string // the last that held it and did not settle it
}

// EventKind is what happened to a key.
type EventKind string

// The kinds of events.
const (
	Added    EventKind = "added"
	Leased   EventKind = "leased"
	Settled  EventKind = "settled"
	Lost     EventKind = "lost"
	Operator EventKind = "operator"
)

// Event is one thing that happened to a key.
type Event struct {
	Kind    EventKind
	At      time.Time
	Session string
	Outcome workqueue.Outcome // of what was settled
	Reason  string
	Held    time.Duration
	Repeats int
	Cause   workqueue.Barrier // of an add: the changes that it is for
	Writes  []Write           // of a settlement: what was written
}

// Write is an object that a run wrote.
type Write struct {
	Verb       string `json:"verb,omitempty"` // create, update, patch, delete
	Collection string `json:"collection"`
	Key        string `json:"key"`
	RV         string `json:"resource_version,omitempty"`
}

// Written is a write, and what the index shows of its object.
type Written struct {
	Write
	Shown   string // the object's resource version in the index; empty where it has none
	Visible bool   // the index shows this write or a later one
}

// Holder is the session that holds the key, as the server that answered knows it.
type Holder struct {
	Connected bool          // its Work stream is open
	Client    string        // what it calls itself
	Lease     time.Duration // how long its lease is; zero where that is not known
}

// Step is a step of the store's clock that was set right.
type Step struct {
	At time.Time
	By time.Duration // how the queue's time was corrected
}

// Collection is a collection as the index serves it.
type Collection struct {
	Name      string
	Synced    bool
	Revision  delta.Revision
	Lag       int64 // records behind the end of the log
	LiveAt    time.Time
	Stale     bool
	Frozen    time.Time // since when its revision stands still behind a hole; zero while it does not
	LastError string
}

// Reflection is a collection as the reflector mirrors it.
type Reflection struct {
	Collection string
	Revision   delta.Revision
	Well       bool   // it watches, or stands by
	Reason     string // why it fails, of the contract's closed set
	LastError  string
}
