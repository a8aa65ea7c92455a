package adopt

import (
	"testing"
	"time"
)

func TestJournalsTellWhatAKillCost(t *testing.T) {
	killed := []entry{{"a", "2", 10, false}, {"a", "2", 20, true}, {"b", "2", 30, false}, {"c", "2", 31, false}}
	other := []entry{{"d", "2", 15, false}, {"d", "2", 35, true}, {"b", "2", 60, false}, {"b", "2", 70, true}, {"c", "2", 90, false}}
	back, lost := after([][]entry{killed, other}, "2", 40, 4)
	if back != 50*time.Nanosecond || lost != 1 {
		t.Errorf("back after %d, %d lost; want 50, and c", back, lost)
	}
	if n := overlaps([][]entry{killed, other}, 40); n != 0 {
		t.Errorf("%d keys overlap, want none", n)
	}
	other = append(other, entry{"a", "2", 15, false}, entry{"a", "2", 25, true})
	if n := overlaps([][]entry{killed, other}, 40); n != 1 {
		t.Errorf("%d keys overlap, want a", n)
	}
}
