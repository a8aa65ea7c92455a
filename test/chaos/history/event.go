// Package history is what the processes of a chaos run write down and the
// checker that reads it.
//
// Every process appends events to a file of its own, each in one write, so that
// kill -9 loses none that happened. All read one clock that neither steps nor
// differs between processes of a machine. An operation is invoked before
// anything is sent, and ends as ok, fail (it surely did not happen) or unknown;
// without an end it is unknown.
package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
)

// Kind says what an event tells.
type Kind string

// The kinds of events.
const (
	Invoke  Kind = "invoke"  // an operation is about to be sent
	OK      Kind = "ok"      // it happened; Status says what it did
	Fail    Kind = "fail"    // it surely did not happen
	Unknown Kind = "unknown" // it may have happened
	Leased  Kind = "leased"  // a worker was handed Key under Token; it is its own until Until
	Held    Kind = "held"    // a worker's lease is its own until Until now
	Dropped Kind = "dropped" // a worker no longer takes Token for its own
	Fault   Kind = "fault"   // somebody was killed, stopped or cut off; Name says how, Whom whom
	Healed  Kind = "healed"  // what Fault with the same ID did is over
	Left    Kind = "left"    // after the end the queue holds Count keys
)

// Op says what an operation does.
type Op string

// The operations.
const (
	Add    Op = "add"
	Settle Op = "settle"
)

// Statuses of an operation that is OK. Of an add any other text will do.
const (
	StatusSettled   = "settled"    // the lease ended as asked
	StatusRequeued  = "requeued"   // it ended, and the key waits again
	StatusLost      = "lost"       // the token is stale, nothing changed
	StatusNotLeased = "not leased" // nobody holds the key, nothing changed
)

// Faults during which a worker cannot know that its lease is over, or the
// store may have gone back in time.
const (
	Pause    = "pause"
	Failover = "failover"
	Kill     = "kill"
	Cut      = "cut"
)

// Event is one thing that happened. Times are nanoseconds of the clock that all
// processes share, unless they say otherwise.
type Event struct {
	At      int64  `json:"at"`
	Process string `json:"p"`
	Kind    Kind   `json:"k"`
	// ID is the same of an operation's invoke and end, and of a fault and its end; unique within its
	// process.
	ID  int64  `json:"id,omitempty"`
	Op  Op     `json:"op,omitempty"`
	Key string `json:"key,omitempty"`
	// Token is the lease's; of leased, held, dropped and settle.
	Token uint64 `json:"token,omitempty"`
	// Until is when a worker stops to take a lease for its own.
	Until int64 `json:"until,omitempty"`
	// Granted is when the store granted the lease, by the shared clock as near as it is known.
	Granted int64 `json:"granted,omitempty"`
	// Delay is for how long an add or a settlement asked the key to wait.
	Delay int64 `json:"delay,omitempty"`
	// Within is the longest that an add or a settlement may make the key wait, where Delay does not
	// say it.
	Within int64 `json:"within,omitempty"`
	// Ends says that a settlement asks for nothing more: the key is done.
	Ends   bool   `json:"ends,omitempty"`
	Status string `json:"status,omitempty"`
	Name   string `json:"name,omitempty"`
	Whom   string `json:"whom,omitempty"`
	Count  int64  `json:"count,omitempty"`
	// Sent is how often an operation was sent, where that is more than once: an
	// earlier copy may still be on its way when a later one has been answered.
	Sent int `json:"sent,omitempty"`
}

// A Log appends the events of one process to a file. It is safe for concurrent use.
type Log struct {
	process string
	clock   func() int64

	mu   sync.Mutex // guards file
	file *os.File
}

// Create makes the log of a process at path; clock reads the shared clock. A
// file that exists is continued.
func Create(path, process string, clock func() int64) (*Log, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return &Log{process: process, clock: clock, file: file}, nil
}

// Write stamps an event that has no time yet, and appends it.
func (l *Log) Write(e Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Process = l.process
	if e.At == 0 {
		e.At = l.clock()
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }

// Read reads the events of one log. The last line may be torn.
func Read(r io.Reader) ([]Event, error) {
	var all []Event
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil { // what has no end was never finished
			if err == io.EOF {
				err = nil
			}
			return all, err
		}
		var e Event
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return all, fmt.Errorf("history: line %d: %w", len(all)+1, err)
		}
		all = append(all, e)
	}
}
