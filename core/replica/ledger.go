package replica

import (
	"cmp"
	"slices"
)

// MaxContests is how many runs of contested ordinals a ledger remembers.
const MaxContests = 64

// Contest is a run of ordinals that more than one token may have claimed, and
// the token whose claim won. Its JSON form is part of saved state.
type Contest struct {
	From   int64  `json:"f"`
	To     int64  `json:"t"` // inclusive
	Winner uint64 `json:"w"`
}

// Ledger is what is known about an owner's ordinals. The zero value has given
// none out. Its methods leave slices handed out before unchanged.
type Ledger struct {
	// Next is the mark: no ordinal at or above it has been claimed.
	Next int64 `json:"n,omitempty"`
	// Contests are sorted by From and do not overlap.
	Contests []Contest `json:"c,omitempty"`
}

// Seen raises the mark above an ordinal that exists.
func (l *Ledger) Seen(ordinal int64) { l.Next = max(l.Next, ordinal+1) }

// Take claims n new ordinals.
func (l *Ledger) Take(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = l.Next + int64(i)
	}
	l.Next += int64(n)
	return out
}

// GiveBack lowers the mark over ordinals that were taken last and certainly
// never used.
func (l *Ledger) GiveBack(unused []int64) {
	for _, o := range slices.Backward(slices.Sorted(slices.Values(unused))) {
		if o != l.Next-1 {
			return
		}
		l.Next--
	}
}

// Won writes down whose claim made the child of a contested ordinal. The first
// answer stays.
func (l *Ledger) Won(ordinal int64, token uint64) {
	if _, ok := l.Winner(ordinal); ok {
		return
	}
	i, _ := slices.BinarySearchFunc(l.Contests, ordinal, func(c Contest, o int64) int { return cmp.Compare(c.From, o) })
	cs := slices.Insert(slices.Clone(l.Contests), i, Contest{From: ordinal, To: ordinal, Winner: token})
	if i+1 < len(cs) && cs[i+1].From == ordinal+1 && cs[i+1].Winner == token {
		cs[i].To = cs[i+1].To
		cs = slices.Delete(cs, i+1, i+2)
	}
	if i > 0 && cs[i-1].To == ordinal-1 && cs[i-1].Winner == token {
		cs[i-1].To = cs[i].To
		cs = slices.Delete(cs, i, i+1)
	}
	for len(cs) > MaxContests {
		oldest := slices.IndexFunc(cs, func(c Contest) bool {
			return c.Winner == slices.MinFunc(cs, func(a, b Contest) int { return cmp.Compare(a.Winner, b.Winner) }).Winner
		})
		cs = slices.Delete(cs, oldest, oldest+1)
	}
	l.Contests = cs
}

// Winner is the token whose claim made the child of an ordinal, if the ordinal
// is known to have been contested.
func (l *Ledger) Winner(ordinal int64) (uint64, bool) {
	for _, c := range l.Contests {
		if c.From <= ordinal && ordinal <= c.To {
			return c.Winner, true
		}
	}
	return 0, false
}

// Surplus reports whether a child of an ordinal, made under a token, is the late
// work of a holder that had lost the contest for it.
func (l *Ledger) Surplus(ordinal int64, token uint64) bool {
	w, ok := l.Winner(ordinal)
	return ok && w != token
}
