package feed

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/deltaplane/deltaplane/client"
)

// Position is where something can be followed from, in a notation of its own. Empty is nowhere.
type Position string

// ErrPosition: a position is not in the notation that it should be in.
var ErrPosition = errors.New("feed: malformed position")

// WatchPosition writes a position of a watch of the index.
func WatchPosition(p client.Position) Position {
	if p == (client.Position{}) {
		return ""
	}
	return Numbers("", p.Epoch, p.Sequence, p.Term, p.ToldEpoch, p.ToldSequence, p.ToldTerm, p.Selection)
}

// OfWatch reads what WatchPosition wrote; empty is the zero value.
func (p Position) OfWatch() (client.Position, error) {
	if p == "" {
		return client.Position{}, nil
	}
	n, err := p.Numbers("", 7)
	if err != nil {
		return client.Position{}, err
	}
	return client.Position{Epoch: n[0], Sequence: n[1], Term: n[2], ToldEpoch: n[3], ToldSequence: n[4], ToldTerm: n[5], Selection: n[6]}, nil
}

// Numbers writes a position as numbers joined by dots, behind what says whose they are.
func Numbers(prefix string, numbers ...uint64) Position {
	text := []byte(prefix)
	for i, n := range numbers {
		if i > 0 {
			text = append(text, '.')
		}
		text = strconv.AppendUint(text, n, 10)
	}
	return Position(text)
}

// Numbers reads what the function Numbers wrote.
func (p Position) Numbers(prefix string, count int) ([]uint64, error) {
	rest, ok := strings.CutPrefix(string(p), prefix)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != count {
		return nil, fmt.Errorf("%w: %q", ErrPosition, p)
	}
	n := make([]uint64, count)
	for i, part := range parts {
		var err error
		if n[i], err = strconv.ParseUint(part, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrPosition, p, err)
		}
	}
	return n, nil
}
