package testing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// kind is something that is done to the code under test.
type kind int

const (
	nothing kind = iota
	staleRead
	failedRead
	brokenStream
	duplicateKey
	lateKey
	lostLease
	killedWorker
	conflict
	lostAnswer
	refusedCall
)

var kindNames = map[kind]string{
	staleRead: "stale read", failedRead: "failed read", brokenStream: "broken stream", duplicateKey: "duplicate key", lateKey: "late key",
	lostLease: "lost lease", killedWorker: "killed worker", conflict: "conflict", lostAnswer: "lost answer", refusedCall: "refused call",
}

func (k kind) String() string { return kindNames[k] }
func (k kind) plural() string { return kindNames[k] + "s" }

// decision is what is done to the nth time that something is called.
type decision struct {
	kind kind
	call string
	nth  int
	// size is from 0 to 1: how late, how long.
	size float64
	// after is how many decisions were made before.
	after int
}

func (d decision) String() string { return fmt.Sprintf("%-14s %s (%d)", d.kind, d.call, d.nth) }

// recent is how many decisions of each kind a failed test shows.
const recent = 5

// adversary decides what is done to calls, and remembers what was. A decision is a
// function of the seed, what is called, and how often that was called before.
type adversary struct {
	seed  uint64
	rates map[kind]float64

	mu     sync.Mutex // guards the rest
	calm   bool
	calls  map[string]int
	made   int
	counts map[kind]int
	last   map[kind][]decision // the newest at the end
}

// newAdversary does nothing when the seed is zero.
func newAdversary(seed uint64, rates Rates) *adversary {
	return &adversary{seed: seed, rates: rates.of(), calm: seed == 0, calls: map[string]int{}, counts: map[kind]int{}, last: map[kind][]decision{}}
}

// decide says which of the kinds is done to a call, if any. Each call is to be asked for
// once.
func (a *adversary) decide(call string, kinds ...kind) decision {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calm {
		return decision{}
	}
	a.calls[call]++
	d := decision{call: call, nth: a.calls[call]}
	at := share(a.seed, call, uint64(d.nth))
	for _, k := range kinds {
		rate := max(a.rates[k], 0)
		if at < rate {
			d.kind, d.size = k, share(a.seed, call, uint64(d.nth), uint64(k))
			d.after = a.made
			a.made++
			a.counts[k]++
			a.last[k] = append(a.last[k], d)
			a.last[k] = a.last[k][max(0, len(a.last[k])-recent):]
			return d
		}
		at -= rate
	}
	return decision{}
}

// rest makes every later decision nothing.
func (a *adversary) rest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calm = true
}

// summary says what was done, and the last of it.
func (a *adversary) summary() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var counts []string
	for _, k := range slices.Sorted(maps.Keys(a.counts)) {
		name := k.plural()
		if a.counts[k] == 1 {
			name = k.String()
		}
		counts = append(counts, fmt.Sprintf("%d %s", a.counts[k], name))
	}
	if len(counts) == 0 {
		return "nothing was done to the code under test"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "done to the code under test: %s; the last of each, with how often the call was made:", strings.Join(counts, ", "))
	all := slices.Concat(slices.Collect(maps.Values(a.last))...)
	slices.SortFunc(all, func(a, b decision) int { return cmp.Compare(a.after, b.after) })
	for _, d := range all {
		fmt.Fprintf(&out, "\n    %s", d)
	}
	return out.String()
}

// share spreads what it is given evenly from 0 to below 1. FNV-1a alone leaves what differs
// at the end alone in the low bits, so its result is mixed once more.
func share(seed uint64, call string, more ...uint64) float64 {
	h := uint64(14695981039346656037)
	add := func(b byte) { h = (h ^ uint64(b)) * 1099511628211 }
	number := func(n uint64) {
		for range 8 {
			add(byte(n))
			n >>= 8
		}
	}
	number(seed)
	for i := range len(call) {
		add(call[i])
	}
	for _, n := range more {
		number(n)
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return float64((h^h>>31)>>11) / (1 << 53)
}
