package delta_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// However long the log is slower than the source, W follows: one turn of the line behind, as the
// line is in the order of the oldest change that each record stands for.
func TestTheWatermarkAdvancesUnderSustainedLag(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 20_000, 100_000} {
		rng := rand.New(rand.NewPCG(1, uint64(limit)))
		s := delta.NewStage(limit, "0")
		const keys = 40
		last, turns, popped, turn := 0, 0, 0, keys
		due := 0 // the source's version one turn of the line ago: what W must have reached now
		for rv := 1; rv <= 10_000; rv++ {
			key := rng.IntN(keys)
			if rng.IntN(2) == 0 {
				key = rng.IntN(3) // some are hot
			}
			push(s, change(delta.Updated, "k"+strconv.Itoa(key), rv))
			if rv%4 != 0 || limit == 100_000 && rv%20 != 0 {
				continue
			}
			for _, r := range s.Pop(1, 1<<30) { // one record for four changes or more
				w, _ := strconv.Atoi(r.Watermark)
				if w < last {
					t.Fatalf("limit %d: W went back from %d to %d", limit, last, w)
				}
				last = w
			}
			if popped++; popped >= turn {
				if last < due {
					t.Fatalf("limit %d: after a turn of the line W is %d, the source was at %d when it began", limit, last, due)
				}
				popped, due, turn = 0, rv, s.Len()
				turns++
			}
		}
		if turns < 3 {
			t.Fatalf("limit %d: %d turns", limit, turns)
		}
	}
}

// Beyond the bound with distinct keys only, coalescing frees nothing: what a watch tells of further
// keys is left to a list, tombstones lose their payload, and W stands still before the first change
// that was not taken.
func TestBeyondItsBoundWithDistinctKeysTheStageTakesNoFurther(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	s := delta.NewStage(limit, "0")
	made := func(i, rv int) delta.Record {
		r := change(delta.Added, fmt.Sprintf("k%05d", i), rv)
		r.Payload = make([]byte, 5000)
		return r
	}
	first := 0
	for i := 1; i <= 2000; i++ {
		if !s.Offer(made(i, i)) && first == 0 {
			first = i
		}
		s.Advance(strconv.Itoa(i))
	}
	if s.Bytes() > delta.Overfill*limit || first == 0 || !s.Lost() || s.Overflowed() != uint64(2000-first+1) {
		t.Fatalf("%d bytes, first refused %d, lost %v, %d refused", s.Bytes(), first, s.Lost(), s.Overflowed())
	}
	if !s.Offer(made(1, 2001)) {
		t.Error("a change of a key that waits was refused")
	}
	before := s.Bytes()
	for i := 3001; i <= 4000; i++ {
		r := made(i, i)
		r.Type = delta.Deleted
		if !s.Offer(r) {
			t.Fatal("a deletion was refused")
		}
		s.Advance(strconv.Itoa(i))
	}
	if each := (s.Bytes() - before) / 1000; each > 600 {
		t.Errorf("a tombstone takes %d bytes", each)
	}
	last := ""
	for s.Len() > 0 {
		for _, r := range s.Pop(100, 1<<20) {
			last = r.Watermark
		}
	}
	if want := strconv.Itoa(first - 1); last != want || s.Watermark() != want {
		t.Errorf("W %s, now %s, want %s: the next change was not taken", last, s.Watermark(), want)
	}
	for i := first; i <= 2000; i++ { // the list
		s.Push(made(i, i))
	}
	s.Recover()
	s.Advance("5000")
	s.Control(delta.Record{Kind: delta.KindSynced, RV: "5000"})
	if s.Lost() {
		t.Error("another list is asked for")
	}
	for s.Len() > 0 {
		for _, r := range s.Pop(100, 1<<30) {
			if last = r.Watermark; r.Kind == delta.KindSynced && last != "5000" {
				t.Errorf("the synced record carries W %s", last)
			}
		}
		if s.Len() > 0 && last != strconv.Itoa(first-1) {
			t.Fatalf("W %s while %d records of the list wait", last, s.Len())
		}
	}
	if last != "5000" {
		t.Errorf("W %s after the list, want 5000", last)
	}
}

// A change that stands for several waits for as long as the first of them did.
func TestTheOldestChangeIsThatOfTheFirstEventThatWaits(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	for name, limit := range map[string]int{"with room": 1 << 20, "beyond the bound": 100} {
		s := delta.NewStage(limit, "0")
		if !s.Oldest().IsZero() {
			t.Errorf("%s: an empty stage has %v", name, s.Oldest())
		}
		for i, key := range []string{"a", "b", "a", "b", "a"} {
			r := change(delta.Updated, key, i+1)
			r.ObservedAt = began.Add(time.Duration(i) * time.Second)
			push(s, r)
		}
		for _, want := range []int{0, 1} {
			if got := s.Oldest(); !got.Equal(began.Add(time.Duration(want) * time.Second)) {
				t.Errorf("%s: the oldest is of %v, want %d s", name, got.Sub(began), want)
			}
			s.Pop(1, 1<<20)
		}
	}
}
