package delta_test

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
)

func change(t delta.Type, key string, rv int) delta.Record {
	r := delta.Record{Kind: delta.KindDelta, Type: t, Key: delta.Key(key), RV: strconv.Itoa(rv)}
	if t == delta.Deleted {
		r.DeleteReason = delta.Observed
	} else {
		r.Payload = make([]byte, 100)
	}
	return r
}

func push(s *delta.Stage, r delta.Record) {
	s.Push(r)
	s.Advance(r.RV)
}

func told(records []delta.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.Kind.String()+" "+string(r.Key)+" "+r.RV+" W"+r.Watermark)
	}
	return out
}

// Wherever a batch ends, what was handed out is the state at the watermark.
func TestChangesAreHandedOutInTheOrderOfTheirVersionsWhileThereIsRoom(t *testing.T) {
	t.Parallel()
	s := delta.NewStage(1<<20, "5")
	push(s, change(delta.Added, "a", 10))
	push(s, change(delta.Added, "b", 20))
	push(s, change(delta.Updated, "a", 30))
	if got := s.Watermark(); got != "5" {
		t.Errorf("W %s before anything was handed out, want 5", got)
	}
	want := []string{"delta a 10 W10", "delta b 20 W20", "delta a 30 W30"}
	if diff := cmp.Diff(want, told(s.Pop(100, 1<<20))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	push(s, change(delta.Updated, "a", 40))
	s.Advance("45") // a bookmark behind it
	if diff := cmp.Diff([]string{"delta a 40 W45"}, told(s.Pop(100, 1<<20))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.Advance("50")
	if diff := cmp.Diff([]string{"progress   W50"}, told(s.Pop(100, 1<<20))); diff != "" {
		t.Errorf("a bookmark alone (-want +got):\n%s", diff)
	}
	if got := s.Pop(100, 1<<20); got != nil {
		t.Errorf("nothing new gives %v", got)
	}
}

func TestEveryPrefixOfWhatAStageWithRoomHandsOutIsAStateOfTheSource(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	s := delta.NewStage(1<<20, "0")
	rv, next := 0, 1
	for range 2000 {
		for range rng.IntN(5) {
			rv++
			typ := []delta.Type{delta.Added, delta.Updated, delta.Deleted}[rng.IntN(3)]
			push(s, change(typ, "k"+strconv.Itoa(rv*7%23)+"/"+strconv.Itoa(rng.IntN(3)), rv))
		}
		for _, r := range s.Pop(rng.IntN(4), 1<<20) {
			if r.Kind != delta.KindDelta {
				continue
			}
			if at, _ := strconv.Atoi(r.RV); at < next {
				t.Fatalf("%s of %s follows %d", r.RV, r.Key, next-1)
			} else if w, _ := strconv.Atoi(r.Watermark); w < at {
				t.Fatalf("%s of %s is handed out at W %s", r.RV, r.Key, r.Watermark)
			} else {
				next = at + 1
			}
		}
	}
	if next < 1000 {
		t.Errorf("%d were handed out", next)
	}
}

func TestConsecutiveDeletionsMergeIntoTheOneWithState(t *testing.T) {
	t.Parallel()
	inferred := change(delta.Deleted, "a", 10)
	inferred.DeleteReason = delta.Inferred
	s := delta.NewStage(1<<20, "")
	push(s, inferred)
	push(s, change(delta.Deleted, "a", 11)) // a tombstone gives way
	push(s, change(delta.Deleted, "a", 12)) // otherwise the earlier one stays
	got := s.Pop(100, 1<<20)
	if len(got) != 1 || got[0].RV != "11" || got[0].DeleteReason != delta.Observed || got[0].Watermark != "12" {
		t.Errorf("got %v", told(got))
	}
}

func TestASyncedRecordWaitsForEverythingBeforeIt(t *testing.T) {
	t.Parallel()
	s := delta.NewStage(1<<20, "")
	for i := range 3 {
		s.Push(change(delta.Replaced, string(rune('a'+i)), i+1))
	}
	s.Advance("100")
	s.Control(delta.Record{Kind: delta.KindSynced, RV: "100"})
	push(s, change(delta.Updated, "z", 101))
	want := []string{"delta a 1 W", "delta b 2 W"}
	if diff := cmp.Diff(want, told(s.Pop(2, 1<<20))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = []string{"delta c 3 W100", "synced  100 W100", "delta z 101 W101"}
	if diff := cmp.Diff(want, told(s.Pop(100, 1<<20))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBeyondItsBoundTheStageKeepsTheLatestOfEachKeyAndCounts(t *testing.T) {
	t.Parallel()
	s := delta.NewStage(2000, "0")
	for i := 1; i <= 1000; i++ {
		push(s, change(delta.Updated, "k"+strconv.Itoa(i%3), i))
	}
	if s.Len() > 6 || s.Bytes() > 3000 || s.Coalesced() < 990 {
		t.Errorf("%d wait in %d bytes, %d coalesced", s.Len(), s.Bytes(), s.Coalesced())
	}
	if got := s.Watermark(); delta.Compare(got, "3") > 0 {
		t.Errorf("W %s passed a change that was coalesced and still waits", got)
	}
	got := s.Pop(100, 1<<20)
	last := map[delta.Key]string{}
	for _, r := range got {
		last[r.Key] = r.RV
	}
	if diff := cmp.Diff(map[delta.Key]string{"k0": "999", "k1": "1000", "k2": "998"}, last); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if w := got[len(got)-1].Watermark; w != "1000" || s.Bytes() != 0 || s.Len() != 0 {
		t.Errorf("W %s, %d bytes, %d waiting at the end", w, s.Bytes(), s.Len())
	}
}

// Random histories: whatever is popped when, a record's watermark never vouches for an event whose
// key's state in the log is older; the states of a key are a subsequence of the source's; the end
// is the source's state.
func TestRandomHistoriesKeepTheWatermarkHonest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 2))
		s := delta.NewStage(200+rng.IntN(4000), "0")
		type ev struct {
			key delta.Key
			rv  int
		}
		var events []ev
		states := map[delta.Key][]string{} // of the source
		latest := map[delta.Key]string{}
		log := map[delta.Key]string{}
		next := map[delta.Key]int{}
		check := func(records []delta.Record) {
			for _, r := range records {
				if r.Kind == delta.KindDelta {
					i := next[r.Key]
					for i < len(states[r.Key]) && states[r.Key][i] != r.RV {
						i++
					}
					if i == len(states[r.Key]) {
						t.Fatalf("seed %d: %s@%s is not a later state of the source", seed, r.Key, r.RV)
					}
					next[r.Key] = i + 1
					log[r.Key] = r.RV
				}
				for _, e := range events {
					if delta.Compare(strconv.Itoa(e.rv), r.Watermark) <= 0 && delta.Compare(log[e.key], strconv.Itoa(e.rv)) < 0 {
						t.Fatalf("seed %d: W%s vouches for %s@%d, the log has %q", seed, r.Watermark, e.key, e.rv, log[e.key])
					}
				}
			}
		}
		for rv := 1; rv <= 120; rv++ {
			switch rng.IntN(8) {
			case 0:
				s.Advance(strconv.Itoa(rv))
			case 1, 2:
				check(s.Pop(1+rng.IntN(4), 1+rng.IntN(1500)))
				fallthrough
			default:
				key := delta.Key(rune('a' + rng.IntN(7)))
				events = append(events, ev{key, rv})
				states[key] = append(states[key], strconv.Itoa(rv))
				latest[key] = strconv.Itoa(rv)
				push(s, change(delta.Updated, string(key), rv))
			}
		}
		for s.Len() > 0 {
			check(s.Pop(3, 1000))
		}
		check(s.Pop(1, 1))
		if diff := cmp.Diff(latest, log); diff != "" {
			t.Fatalf("seed %d: the log's end (-source +log):\n%s", seed, diff)
		}
		if s.Bytes() != 0 {
			t.Fatalf("seed %d: %d bytes are left", seed, s.Bytes())
		}
	}
}
