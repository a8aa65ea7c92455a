package read

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
	"github.com/deltaplane/deltaplane/internal/stream/write"
)

// group is a log that is replicated: records of a few keys, of which each server has applied those
// up to a place of its own.
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
			if len(g.keys) < g.applied[0]+link.MaxInFlight {
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

// Another consumer's server may have had more than this one's, and more than the leader: what
// writers may have under way.
func TestAHoleThatAnotherConsumerFoundEndsBehindWhatAWriterMayHaveUnderWay(t *testing.T) {
	t.Parallel()
	var h holeEnd
	h.begin()
	h.saw(&delta.Record{Kind: delta.KindDelta, Key: "a", Sequence: 99})
	h.inherit(100)
	for seq := uint64(101); seq < 100+link.MaxInFlight; seq++ {
		if h.saw(&delta.Record{Kind: delta.KindDelta, Key: "a", Sequence: seq}); !h.open {
			t.Fatalf("certain at %d", seq)
		}
	}
	if h.saw(&delta.Record{Kind: delta.KindDelta, Key: "a", Sequence: 100 + link.MaxInFlight}); h.open {
		t.Error("not certain at the end")
	}
	if h.inherit(500); h.open {
		t.Error("a hole that has ended begins again with another consumer")
	}
}

// counting is a consumer of which the server says this.
type counting struct {
	jetstream.Consumer
	info jetstream.ConsumerInfo
}

func (c counting) Info(context.Context) (*jetstream.ConsumerInfo, error) { return &c.info, nil }

// The server's count of pending records is behind its store: a replay that ended by it would answer
// from old records behind a hole.
func TestACountOfNothingPendingIsNotTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{})
	records := []delta.Record{update("a", 1, 2), update("b", 2, 2)}
	w, err := write.New(t.Context(), c, records[0].Collection, write.Config{Term: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := errors.Join(w.Append(t.Context(), records), w.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	tail, err := c.Tail(t.Context(), records[0].Collection)
	if err != nil {
		t.Fatal(err)
	}
	idle := jetstream.ConsumerInfo{NumWaiting: 1}
	for _, row := range []struct {
		name     string
		replicas int
		at       uint64
		info     jetstream.ConsumerInfo
		calm     bool
		want     bool
	}{
		{"a record is left", 1, tail.Last - 1, idle, false, false},
		{"none is", 1, tail.Last, idle, false, true},
		{"one is counted", 1, tail.Last, jetstream.ConsumerInfo{NumPending: 1}, false, false},
		{"one is on its way", 1, tail.Last, jetstream.ConsumerInfo{Delivered: jetstream.SequenceInfo{Consumer: 1}}, false, false},
		{"a record is left on the leader", 3, tail.Last - 1, idle, true, false},
		{"the feeding server was asked once", 3, tail.Last, idle, false, false},
		{"the feeding server was asked twice", 3, tail.Last, idle, true, true},
	} {
		r := &reader{c: c, col: records[0].Collection, replicas: row.replicas, pos: delta.Position{Epoch: 1, Term: 2, Sequence: row.at}, calm: row.calm}
		if got, err := r.exhausted(t.Context(), counting{info: row.info}, tail); err != nil || got != row.want {
			t.Errorf("%s: exhausted() = %v, %v; want %v", row.name, got, err, row.want)
		}
	}
	r := &reader{c: c, col: records[0].Collection, replicas: 3, pos: delta.Position{Sequence: tail.Last}}
	for i, info := range []jetstream.ConsumerInfo{{}, {}, idle, {NumPending: 1}, idle} {
		if got, err := r.exhausted(t.Context(), counting{info: info}, tail); got || err != nil {
			t.Errorf("look %d: exhausted() = %v, %v; no two in a row found a request and nothing to send", i, got, err)
		}
	}
}

func update(name string, rv int, term uint64) delta.Record {
	return delta.Record{
		Kind: delta.KindDelta, Collection: delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}, Key: delta.NewKey("default", name), UID: "u",
		Type: delta.Updated, RV: strconv.Itoa(rv), Watermark: strconv.Itoa(rv), Payload: []byte("{}"), Encoding: delta.EncodingJSON, Epoch: 1, Term: term,
	}
}
