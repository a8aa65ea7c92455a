package delta

import (
	"strconv"
	"testing"
)

func TestAFullStageCostsNothingForFurtherChangesOfAKeyThatWaits(t *testing.T) {
	t.Parallel()
	s := NewStage(4<<10, "0")
	push := func(key Key, rv int) {
		s.Push(Record{Kind: KindDelta, Type: Updated, Key: key, RV: strconv.Itoa(rv)})
		s.Advance(strconv.Itoa(rv))
	}
	for i := range 100 {
		push(NewKey("n", strconv.Itoa(i)), i+1)
	}
	s.Control(Record{Kind: KindSynced})
	for i := range 100_000 {
		push("n/7", 101+i)
	}
	if len(s.seen) > 200 {
		t.Errorf("%d events are remembered for %d records", len(s.seen), s.Len())
	}
	var last RV
	kinds := map[Kind]int{}
	for {
		out := s.Pop(10, 1<<20)
		if len(out) == 0 {
			break
		}
		for i := range out {
			kinds[out[i].Kind]++
			if Compare(out[i].Watermark, last) < 0 {
				t.Fatalf("W went back from %s to %s", last, out[i].Watermark)
			}
			if last = out[i].Watermark; len(s.items["n/7"]) > 0 && Compare(last, "7") > 0 {
				t.Fatalf("W is %s while the change of 8 waits", last)
			}
		}
	}
	if last != "100100" || kinds[KindDelta] != 100 || kinds[KindSynced] != 1 {
		t.Errorf("W %s, %v; want all handed out", last, kinds)
	}
}
