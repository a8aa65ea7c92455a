package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A figure is one measured thing beside what it is compared with.
type figure struct {
	Name string `json:"figure"`
	Unit string `json:"unit"`
	Ours spread `json:"ours"`
	// Beside is the peer, the baseline or the ceiling, run in the same rounds.
	Beside     *spread `json:"beside,omitempty"`
	BesideName string  `json:"beside_name,omitempty"`
	// Ratio is ours over beside, taken within each round.
	Ratio  *spread `json:"ratio,omitempty"`
	Target *target `json:"target,omitempty"`
	OK     bool    `json:"ok"`
	// Foreign is the share of the machine that others used. Above a tenth of
	// it, a target on a rate is judged by what is left: rate / (1 - share).
	Foreign float64 `json:"foreign,omitempty"`
	// Aside are figures that explain this one, such as CPU per operation beside a rate.
	Aside []aside `json:"aside,omitempty"`
}

// aside is a number that explains a figure.
type aside struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Values spread `json:"values"`
}

// target is what a figure must reach; ok is judged by the median.
type target struct {
	// Of is "ratio" or "ours".
	Of string `json:"of"`
	// Max tells whether Limit is the most allowed; otherwise it is the least.
	Max   bool    `json:"max"`
	Limit float64 `json:"limit"`
}

func atMost(of string, limit float64) *target  { return &target{Of: of, Max: true, Limit: limit} }
func atLeast(of string, limit float64) *target { return &target{Of: of, Limit: limit} }

// alone makes a figure without anything beside it.
func alone(name, unit string, ours []float64, t *target) figure {
	return figure{Name: name, Unit: unit, Ours: spreadOf(ours), Target: t}
}

// compare makes a figure of two series with one value per round each.
func compare(name, unit string, ours []float64, besideName string, beside []float64, t *target) figure {
	f := alone(name, unit, ours, t)
	f.Beside, f.BesideName, f.Ratio = new(spreadOf(beside)), besideName, new(spreadOf(ratios(ours, beside)))
	return f
}

// with adds an aside.
func (f figure) with(name, unit string, values []float64) figure {
	f.Aside = append(f.Aside, aside{Name: name, Unit: unit, Values: spreadOf(values)})
	return f
}

// judge fills in OK.
func (f *figure) judge() {
	f.OK = true
	if f.Target == nil {
		return
	}
	var got float64
	switch {
	case f.Target.Of == "ours":
		got = f.Ours.Median
		if f.shared() {
			got /= 1 - f.Foreign
		}
	case f.Ratio != nil:
		got = f.Ratio.Median
	default:
		got = math.NaN()
	}
	if f.Target.Max {
		f.OK = got <= f.Target.Limit
	} else {
		f.OK = got >= f.Target.Limit
	}
}

// shared tells whether a rate is judged by the part of the machine that was ours.
func (f *figure) shared() bool { return f.Foreign > foreignLimit && f.Target != nil && !f.Target.Max }

// line is "figure | ours | beside it | ratio | target | ok", asides in brackets behind the name.
func (f figure) line() string {
	name := f.Name
	for i, a := range f.Aside {
		name += map[bool]string{true: " (", false: ", "}[i == 0] + strings.TrimSpace(a.Name+" "+short(a.Values.Median)+" "+a.Unit)
	}
	if len(f.Aside) > 0 {
		name += ")"
	}
	beside, ratio, limit, ok := "-", "-", "-", "-"
	if f.Beside != nil {
		beside = f.BesideName + " " + f.Beside.text(f.Unit)
	}
	if f.Ratio != nil {
		ratio = f.Ratio.text("")
	}
	if t := f.Target; t != nil {
		limit = map[bool]string{true: "<= ", false: ">= "}[t.Max] + short(t.Limit)
		if t.Of == "ours" {
			limit += " " + f.Unit
		}
		ok = map[bool]string{true: "yes", false: "NO"}[f.OK]
		if f.shared() && t.Of == "ours" {
			ok += fmt.Sprintf(" (%s %s with the machine to itself: others used %.0f %% of it)", short(f.Ours.Median/(1-f.Foreign)), f.Unit, 100*f.Foreign)
		}
	}
	return strings.Join([]string{name, f.Ours.text(f.Unit), beside, ratio, limit, ok}, " | ")
}

func (s spread) text(unit string) string {
	if s.Repeats == 0 {
		return "no data"
	}
	text := short(s.Median)
	if unit != "" {
		text += " " + unit
	}
	if s.Repeats > 1 {
		text += " [" + short(s.Min) + ".." + short(s.Max) + "]"
	}
	return text
}

// short writes a number with three significant digits or all of its whole ones.
func short(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return fmt.Sprintf("%.3g", v)
}
