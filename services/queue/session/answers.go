package session

import (
	"slices"

	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// batchSum is the number of a batch that was produced, and what it asked for.
type batchSum struct{ id, sum uint64 }

// ProduceWindow is how many batches of one Produce stream may be under way, and of
// how many a session remembers the numbers.
const ProduceWindow = 64

// answer is what a settlement request got, for when it comes again.
type answer struct {
	id, sum uint64        // sum is of what was asked
	ready   chan struct{} // closed when rows or err are set
	rows    []Row
	err     error
}

// keptAnswers is how many answers a session remembers.
const keptAnswers = 32

// begin registers a settlement request. A repeat gets the first one's answer
// to wait for; one too old to tell is an error, and so is another request with
// the same number. A request without a number gets nothing.
func (s *Session) begin(id, sum uint64) (a *answer, repeat bool, err error) {
	if id == 0 {
		return nil, false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.answers {
		if a.id == id && a.sum != sum {
			return nil, false, wire.ErrRequestReused
		}
		if a.id == id {
			return a, true, nil
		}
	}
	if len(s.answers) >= keptAnswers {
		if id < s.answers[0].id {
			return nil, false, wire.ErrRequestID
		}
		s.answers = slices.Delete(s.answers, 0, 1)
	}
	a = &answer{id: id, sum: sum, ready: make(chan struct{})}
	s.answers = append(s.answers, a)
	return a, false, nil
}

// Produced registers a batch, or refuses it because its number was used for
// another one.
func (s *Session) Produced(id, sum uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batches == nil {
		s.batches = make([]batchSum, ProduceWindow)
	}
	last := &s.batches[id%ProduceWindow]
	if last.id == id && last.sum != sum {
		return wire.ErrRequestReused
	}
	*last = batchSum{id, sum}
	return nil
}

// end sets an answer. A request that failed is forgotten, so that it can be
// made again.
func (s *Session) end(a *answer, rows []Row, err error) {
	if a == nil {
		return
	}
	a.rows, a.err = rows, err
	close(a.ready)
	if err != nil {
		s.mu.Lock()
		s.answers = slices.DeleteFunc(s.answers, func(o *answer) bool { return o == a })
		s.mu.Unlock()
	}
}
