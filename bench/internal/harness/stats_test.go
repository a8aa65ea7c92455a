package harness

import (
	"math"
	"testing"
	"time"
)

func TestSpreadTakesTheMiddleAndLeavesOutWhatIsNoNumber(t *testing.T) {
	t.Parallel()
	s := SpreadOf([]float64{4, math.NaN(), 1, 3, math.Inf(1), 2})
	if s.Median != 2.5 || s.Min != 1 || s.Max != 4 || s.Repeats != 4 {
		t.Errorf("spread = %+v, want median 2.5 of 1..4 in 4 repeats", s)
	}
	if s.Lower != 1.75 || s.Upper != 3.25 {
		t.Errorf("quartiles %g and %g, want 1.75 and 3.25", s.Lower, s.Upper)
	}
	if one := SpreadOf([]float64{7}); one.Median != 7 || one.Lower != 7 || one.Upper != 7 {
		t.Errorf("spread of one = %+v, want 7 everywhere", one)
	}
	if got := SpreadOf(nil); got.Repeats != 0 {
		t.Errorf("spread of nothing = %+v, want zero", got)
	}
}

func TestHistogramQuantilesAreWithinOnePercent(t *testing.T) {
	t.Parallel()
	var h Histogram
	for i := range 100_000 {
		h.Record(time.Duration(i+1) * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 50 * time.Millisecond, 0.99: 99 * time.Millisecond, 1: 100 * time.Millisecond, 0: time.Microsecond} {
		got := h.Quantile(q)
		if off := math.Abs(float64(got-want)) / float64(want); off > 0.01 {
			t.Errorf("quantile %g = %v, want %v within 1 %%", q, got, want)
		}
	}
	if h.Count() != 100_000 {
		t.Errorf("count = %d, want 100000", h.Count())
	}
}

func TestHistogramBucketsHoldTheirMiddleUpToTheLargestDuration(t *testing.T) {
	t.Parallel()
	for ns := uint64(1); ns < 1<<63; ns = ns*3 + 1 {
		at := bucketOf(ns)
		if bucketOf(middle(at)) != at {
			t.Errorf("middle of the bucket of %d is in bucket %d, want %d", ns, bucketOf(middle(at)), at)
		}
	}
}
