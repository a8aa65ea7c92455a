package series

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A How says what values of several names become where these share a label value.
type How int

// What values become.
const (
	// Sum is for amounts and counters. A counter of the rest falls when one of its names goes, which
	// Prometheus takes for a restart.
	Sum How = iota
	// Max is for ages, and for flags of what is wrong.
	Max
	// Min is for flags of what is well.
	Min
	// Own is for values that say nothing of several names: the rest does not show them.
	Own
)

// A Fold gathers what a collector reads at a scrape, so that names that share a label value have
// one series. Its zero value is empty. It is for one goroutine.
type Fold struct {
	at  map[foldKey]int
	all []folded
}

type foldKey struct {
	desc   *prometheus.Desc
	labels string
}

type folded struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []string
	value  float64
}

// Add adds a value. The first of the labels is one that [Names] gave.
func (f *Fold) Add(d *prometheus.Desc, kind prometheus.ValueType, how How, v float64, labels ...string) {
	if how == Own && labels[0] == Rest {
		return
	}
	key := foldKey{d, strings.Join(labels, "\xff")}
	if f.at == nil {
		f.at = map[foldKey]int{}
	}
	i, ok := f.at[key]
	if !ok {
		f.at[key] = len(f.all)
		f.all = append(f.all, folded{d, kind, labels, v})
		return
	}
	switch has := &f.all[i].value; how {
	case Sum:
		*has += v
	case Max:
		*has = max(*has, v)
	case Min:
		*has = min(*has, v)
	case Own: // a name's own value is added once
	}
}

// Send sends one metric for each label value.
func (f *Fold) Send(ch chan<- prometheus.Metric) {
	for i := range f.all {
		s := &f.all[i]
		ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value, s.labels...)
	}
}
