// Package feed is the queue by whose only key the replicas of a controller agree on a leader of its
// feed, and the state of that key, which a leader leaves to the next one. The leaders of packages
// controller and controllerruntime write it, and client/testing reads how far a feed is.
package feed

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Suffix ends the name of the queue; what is before it is the name of the queue of keys.
const Suffix = "/feed"

// State is what a leader leaves.
type State struct {
	// Version is that of the format. Another one is worth nothing.
	Version int `json:"v"`
	// Generation of the queue's store that holds the keys up to the positions.
	Generation string `json:"g"`
	// Swept is when the last round over every key began, in seconds.
	Swept int64 `json:"s"`
	// Due: every key is to be added because of a mapper that panicked.
	Due bool `json:"due,omitempty"`
	// At are the places by names made by [Name]. A collection without one is read from its state.
	At map[string]Place `json:"at"`
	// Fed names, sorted, what the changes up to the positions were handed to, where that is not
	// one thing only. What is not among them has had none.
	Fed []string `json:"f,omitempty"`
}

// Place is how far a collection was followed.
type Place struct {
	// Position is in the notation of what is followed.
	Position string `json:"p"`
	// Epoch and RV are a revision: the next leader must not read an older state.
	Epoch uint64 `json:"e,omitempty"`
	RV    string `json:"r,omitempty"`
}

// Name names what is followed of a collection.
func Name(collection, what string) string { return collection + "#" + what }

// Collection is that of a name.
func Collection(name string) string {
	collection, _, _ := strings.Cut(name, "#")
	return collection
}

const version = 1

// Encode writes a state, which a key's has to have room for.
func (s State) Encode() ([]byte, error) {
	s.Version = version
	b, err := json.Marshal(s)
	if err == nil && len(b) > workqueue.MaxStateLen {
		err = fmt.Errorf("controller: the positions take %d bytes, at most %d are possible", len(b), workqueue.MaxStateLen)
	}
	return b, err
}

// Decode reads what was left; nothing, or what another version left, is the zero value.
func Decode(b []byte) (State, error) {
	if len(b) == 0 {
		return State{}, nil
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("controller: saved positions: %w", err)
	}
	if s.Version != version {
		return State{}, fmt.Errorf("controller: saved positions are of version %d, not %d", s.Version, version)
	}
	return s, nil
}
