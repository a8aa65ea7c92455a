package controller

import (
	"encoding/json"
	"fmt"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// saved is what a leader leaves to the next one, in the state of the feed's key.
type saved struct {
	// Version is that of the format. Another one is worth nothing.
	Version int `json:"v"`
	// Generation of the queue's store that holds the keys up to the positions.
	Generation string `json:"g"`
	// Swept is when the last round over every key began, in seconds.
	Swept int64 `json:"s"`
	// Due: every key is to be added because of a mapper that panicked.
	Due bool `json:"due,omitempty"`
	// At are the positions by [watched.id]. A collection without one is read from its state.
	At map[string]place `json:"at"`
}

// place is how far a collection was followed.
type place struct {
	Position position `json:"p"`
	// Epoch and RV are a revision: the next leader must not read an older state.
	Epoch uint64 `json:"e,omitempty"`
	RV    string `json:"r,omitempty"`
}

func (p place) revision() client.Revision { return client.Revision{Epoch: p.Epoch, RV: p.RV} }

const savedVersion = 1

func (s saved) encode() ([]byte, error) {
	s.Version = savedVersion
	b, err := json.Marshal(s)
	if err == nil && len(b) > workqueue.MaxStateLen {
		err = fmt.Errorf("controller: the positions take %d bytes, at most %d are possible", len(b), workqueue.MaxStateLen)
	}
	return b, err
}

// decodeSaved reads what was left; nothing, or what another version left, is the zero value.
func decodeSaved(b []byte) (saved, error) {
	if len(b) == 0 {
		return saved{}, nil
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil {
		return saved{}, fmt.Errorf("controller: saved positions: %w", err)
	}
	if s.Version != savedVersion {
		return saved{}, fmt.Errorf("controller: saved positions are of version %d, not %d", s.Version, savedVersion)
	}
	return s, nil
}
