package load

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Delays reads a service's own histogram of seconds, by its native buckets.
type Delays struct {
	Registry prometheus.Gatherer
	Metric   string
	before   map[int]float64 // counts by native bucket, as read last
}

// Since returns the quantiles in milliseconds of what was observed since it was
// asked last, and how many that were.
func (d *Delays) Since() (map[string]float64, error) {
	if d.Registry == nil {
		return nil, fmt.Errorf("%s: nothing was started", d.Metric)
	}
	families, err := d.Registry.Gather()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == d.Metric })
	if at < 0 {
		return nil, fmt.Errorf("there is no metric %s", d.Metric)
	}
	h := families[at].GetMetric()[0].GetHistogram()
	counts := nativeCounts(h)
	fresh := map[int]float64{}
	total := 0.
	for bucket, n := range counts {
		if more := n - d.before[bucket]; more > 0 {
			fresh[bucket] = more
			total += more
		}
	}
	d.before = counts
	ms := func(q float64) float64 { return 1e3 * nativeQuantile(fresh, total, h.GetSchema(), q) }
	return map[string]float64{"p50": ms(.5), "p99": ms(.99), "count": total}, nil
}

// zeroBucket counts what is too small for a bucket.
const zeroBucket = math.MinInt

// nativeCounts is what each native bucket of a histogram holds.
func nativeCounts(h *dto.Histogram) map[int]float64 {
	counts := map[int]float64{zeroBucket: float64(h.GetZeroCount())}
	bucket, n, at := 0, int64(0), 0
	for _, span := range h.GetPositiveSpan() {
		bucket += int(span.GetOffset())
		for range span.GetLength() {
			n += h.GetPositiveDelta()[at]
			counts[bucket] = float64(n)
			bucket, at = bucket+1, at+1
		}
	}
	return counts
}

// nativeQuantile finds a quantile among counts by bucket; bucket i of a schema
// ends at 2^(i/2^schema). Within a bucket it is interpolated by the logarithm.
func nativeQuantile(counts map[int]float64, total float64, schema int32, q float64) float64 {
	rank := q * total
	for _, bucket := range slices.Sorted(maps.Keys(counts)) {
		n := counts[bucket]
		if rank > n {
			rank -= n
			continue
		}
		if bucket == zeroBucket {
			return 0
		}
		return math.Exp2((float64(bucket) - 1 + rank/n) / math.Exp2(float64(schema)))
	}
	return 0
}
