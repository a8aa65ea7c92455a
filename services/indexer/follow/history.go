package follow

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/deltaplane/deltaplane/core/delta"
)

// history is what readers that resume have to know of the log.
type history struct {
	terms atomic.Pointer[[]termStart]
	stale atomic.Pointer[[]span]
}

// termStart is a term with the lowest sequence at which it was seen.
type termStart struct{ term, first uint64 }

// noteTerms remembers where terms began, for readers that resume. seen is the
// last sequence before the records. A term that is met by another record than
// those that begin it may have begun anywhere behind the one before.
func (h *history) noteTerms(records []delta.Record, seen uint64) {
	var known []termStart
	if p := h.terms.Load(); p != nil {
		known = *p
	}
	changed := false
	for i := range records {
		r := &records[i]
		if r.Sequence == 0 {
			continue
		}
		if n := len(known); n == 0 || known[n-1].term < r.Term {
			first := seen + 1
			if r.Kind.BeginsTerm() {
				first = r.Sequence
			}
			known, changed = append(slices.Clip(known), termStart{r.Term, first}), true
		}
		seen = r.Sequence
	}
	if changed {
		h.terms.Store(&known)
	}
}

// CutBack reports whether a term newer than the position's began at or below
// it: the record that was there is not part of the log any more.
func (h *history) CutBack(p delta.Position) bool {
	known := h.terms.Load()
	if known == nil || p.Term == 0 {
		return false
	}
	for _, k := range *known {
		if k.term > p.Term && k.first <= p.Sequence {
			return true
		}
	}
	return false
}

// span is the positions between two, both left out.
type span struct{ from, to uint64 }

// open is the end of a span that goes on.
const open = math.MaxUint64

// mostSpans bounds what is remembered; the two oldest become one.
const mostSpans = 64

// noteStale remembers at which positions the objects held are not those of the
// log at that position, since newer records had replaced theirs: until the end
// of the log as it was seen after that. gap says that a batch behind seen leaves
// out some, reset that it starts the log over; noteStale reports whether the
// batch is within such a span.
func (h *history) noteStale(reset, gap bool, seen uint64) bool {
	var spans []span
	if p := h.stale.Load(); p != nil && !reset {
		spans = slices.Clone(*p)
	}
	n := len(spans)
	stale := n > 0 && spans[n-1].to == open
	if !stale && !gap && !reset {
		return false
	}
	if !stale {
		spans = append(spans, span{seen, open})
	}
	if n := len(spans); n > mostSpans {
		spans = slices.Replace(spans, 0, 2, span{spans[0].from, spans[1].to})
	}
	h.stale.Store(&spans)
	return true
}

// endStale ends a span whose end has been applied. That is done behind the
// snapshot, so that a reader that finds it ended finds that too.
func (h *history) endStale(at uint64) {
	p := h.stale.Load()
	if p == nil || (*p)[len(*p)-1].to != open {
		return
	}
	spans := slices.Clone(*p)
	spans[len(spans)-1].to = at
	h.stale.Store(&spans)
}

// Exact reports whether a reader of the log up to a position knew what this
// replica knew there, so that its changes since are the reader's.
func (h *history) Exact(p delta.Position) bool {
	if spans := h.stale.Load(); spans != nil {
		for _, s := range *spans {
			if s.from < p.Sequence && p.Sequence < s.to {
				return false
			}
		}
	}
	return true
}
