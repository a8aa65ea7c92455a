package rpc

import (
	"testing"
	"time"
)

func TestLimitersAreBoundedAndLimitEachByItself(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for _, most := range []int{3, 500} {
		l := Limiters[int]{Burst: 2, Rate: 1, Most: most}
		for i := range 3 * most { // none of them is quiet
			taken := 0
			for l.Take(i, now) {
				taken++
			}
			if taken != 2 || l.May(i, now) {
				t.Fatalf("%d of %d takes %d, want 2", i, most, taken)
			}
			if len(l.of) > most {
				t.Fatalf("%d are remembered, at most %d", len(l.of), most)
			}
		}
		last := 3*most - 1
		if now := now.Add(time.Second); !l.May(last, now) || !l.Take(last, now) || l.Take(last, now) {
			t.Error("a second later one is not what may be taken")
		}
		l.Count(last, now)
		l.Forget(last)
		if !l.May(last, now) {
			t.Error("one that is forgotten does not begin again")
		}
	}
}
