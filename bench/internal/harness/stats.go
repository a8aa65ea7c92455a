package harness

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

// spread sums up the rounds of one series.
type spread struct {
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Repeats int     `json:"repeats"`
	// Lower and Upper are the quartiles: the middle half of the rounds lies between them.
	Lower float64   `json:"lower_quartile"`
	Upper float64   `json:"upper_quartile"`
	All   []float64 `json:"all,omitempty"`
}

// SpreadOf sums up values; none give the zero spread. What is not a number is left out.
func SpreadOf(values []float64) spread {
	all := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(all) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(all))
	at := func(q float64) float64 { // between two values in proportion
		rank := q * float64(len(sorted)-1)
		low := int(rank)
		high := min(low+1, len(sorted)-1)
		return sorted[low] + (rank-float64(low))*(sorted[high]-sorted[low])
	}
	return spread{
		Median: at(.5), Min: sorted[0], Max: sorted[len(sorted)-1], Repeats: len(all),
		Lower: at(.25), Upper: at(.75), All: all,
	}
}

// ratios divides two series round by round.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}

// Scaled multiplies a series.
func Scaled(a []float64, by float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] * by
	}
	return out
}

// Histogram counts durations in buckets less than 1 % wide. The zero value is
// empty. It is safe for concurrent use.
type Histogram struct {
	buckets [64 << subBits]atomic.Int64
}

// subBits is the number of bits that tell the buckets between two powers of two apart.
const subBits = 7

func bucketOf(ns uint64) int {
	shift := max(bits.Len64(ns)-subBits-1, 0)
	return shift<<subBits + int(ns>>shift)
}

// middle is a value in the middle of a bucket.
func middle(bucket int) uint64 {
	if bucket < 2<<subBits {
		return uint64(bucket)
	}
	shift := bucket>>subBits - 1
	return uint64(bucket-shift<<subBits)<<shift + 1<<shift>>1
}

// Record counts one duration.
func (h *Histogram) Record(d time.Duration) { h.buckets[bucketOf(uint64(max(d, 0)))].Add(1) }

// Count is how many were recorded.
func (h *Histogram) Count() (n int64) {
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	return n
}

// Quantile is the duration that the share q of what was recorded does not exceed; 0 when empty.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(int64(math.Ceil(q*float64(h.Count()))), 1)
	for i := range h.buckets {
		if rank -= h.buckets[i].Load(); rank <= 0 {
			return time.Duration(middle(i))
		}
	}
	return 0
}

// Latencies tells how long after a each b was, in milliseconds: p50 and p99.
func Latencies(a, b []int64) (p50, p99 float64) {
	var all []time.Duration
	for i := range min(len(a), len(b)) {
		if a[i] != 0 && b[i] != 0 {
			all = append(all, time.Duration(b[i]-a[i]))
		}
	}
	slices.Sort(all)
	return QuantileOf(all, .5).Seconds() * 1e3, QuantileOf(all, .99).Seconds() * 1e3
}

// QuantileOf is the duration that the share q of sorted ones does not exceed; 0 of none.
func QuantileOf(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	at := int(q*float64(len(sorted)) + .999999)
	return sorted[min(max(at, 1), len(sorted))-1]
}

// Later is the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Abs is v without its sign.
func Abs(v float64) float64 { return max(v, -v) }

// Ms are milliseconds.
func Ms(d time.Duration) float64 { return d.Seconds() * 1e3 }
