package stream

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
)

// group is a log that is replicated: records of a few keys, of which each server has applied those up to a place of its own.
type group struct {
	keys    []delta.Key // of sequence i+1
	applied [3]int      // applied[0] is the leader's
}

// has reports whether a server's store holds a sequence: it keeps one record of a key.
func (g *group) has(server, seq int) bool {
	for later := seq + 1; later <= g.applied[server]; later++ {
		if g.keys[later-1] == g.keys[seq-1] {
			return false
		}
	}
	return seq <= g.applied[server]
}

func TestARevisionBehindAHoleIsCertainWheneverItMoves(t *testing.T) {
	t.Parallel()
	certain, left := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a history, not a secret
		g := &group{}
		keys := 2 + rng.IntN(40)
		write := func() {
			if len(g.keys) < g.applied[0]+MaxInFlight {
				g.keys = append(g.keys, delta.Key(strconv.Itoa(rng.IntN(keys))))
			}
		}
		var h holeEnd
		newest := map[delta.Key]int{} // read
		pos, server := 0, 1
		for range 400 {
			switch rng.IntN(12) {
			case 0, 1, 2:
				for range rng.IntN(20) {
					write()
				}
			case 3, 4, 5:
				s := rng.IntN(3)
				g.applied[s] += rng.IntN(len(g.keys) - g.applied[s] + 1)
			case 6:
				if rng.IntN(8) == 0 { // another consumer, on a server that has what was read
					server = 3 - server
					g.applied[server] = max(g.applied[server], pos)
					h.inherit(uint64(g.applied[0]))
				}
			default:
				next := pos + 1
				for next <= g.applied[server] && !g.has(server, next) {
					next++
				}
				if next > g.applied[server] {
					continue
				}
				if next != pos+1 {
					left++
					h.begin()
				}
				pos = next
				newest[g.keys[pos-1]] = pos
				h.saw(&delta.Record{Kind: delta.KindDelta, Key: g.keys[pos-1], Sequence: uint64(pos)})
			}
			if h.open {
				continue
			}
			certain++
			for seq := 1; seq <= pos; seq++ {
				if newest[g.keys[seq-1]] < seq {
					t.Fatalf("seed %d: at %d the change %d of key %s is missed", seed, pos, seq, g.keys[seq-1])
				}
			}
		}
	}
	if left < 1000 || certain < 2000 {
		t.Errorf("%d holes, certain %d times: too few to show anything", left, certain)
	}
}

// A writer that is silent but for its signs of life must not keep a revision from moving.
func TestTwoSignsOfLifeEndAHole(t *testing.T) {
	t.Parallel()
	var h holeEnd
	h.begin()
	for seq, kind := range []delta.Kind{delta.KindDelta, delta.KindLiveness, delta.KindProgress, delta.KindLiveness} {
		if !h.open {
			t.Fatalf("certain after %d records", seq)
		}
		h.saw(&delta.Record{Kind: kind, Sequence: uint64(seq) + 10})
	}
	if h.open {
		t.Error("not certain after the second")
	}
}

// Another consumer's server may have had more than this one's, and more than the leader: what writers may have under way.
func TestAHoleThatAnotherConsumerFoundEndsBehindWhatAWriterMayHaveUnderWay(t *testing.T) {
	t.Parallel()
	var h holeEnd
	h.begin()
	h.saw(&delta.Record{Kind: delta.KindDelta, Key: "a", Sequence: 99})
	h.inherit(100)
	for seq := uint64(101); seq < 100+MaxInFlight; seq++ {
		if h.saw(&delta.Record{Kind: delta.KindDelta, Key: "a", Sequence: seq}); !h.open {
			t.Fatalf("certain at %d", seq)
		}
	}
	if h.saw(&delta.Record{Kind: delta.KindDelta, Key: "a", Sequence: 100 + MaxInFlight}); h.open {
		t.Error("not certain at the end")
	}
	if h.inherit(500); h.open {
		t.Error("a hole that has ended begins again with another consumer")
	}
}
