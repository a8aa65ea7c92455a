package harness

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Figure is one measured thing beside what it is compared with.
type Figure struct {
	Name string `json:"figure"`
	Unit string `json:"unit"`
	Ours spread `json:"ours"`
	// Beside is the peer, the baseline or the ceiling, run in the same rounds.
	Beside     *spread `json:"beside,omitempty"`
	BesideName string  `json:"beside_name,omitempty"`
	// Ratio is ours over beside, taken within each round.
	Ratio  *spread `json:"ratio,omitempty"`
	Target *Target `json:"target,omitempty"`
	OK     bool    `json:"ok"`
	// Foreign is the share of the machine that others used. Above a tenth of
	// it, a least rate is judged by Capacity.
	Foreign float64 `json:"foreign,omitempty"`
	// Capacity is the rate at which the CPU that one operation takes of all
	// processes of the bench, driver included, would fill every core.
	Capacity   *spread `json:"capacity,omitempty"`
	ByCapacity bool    `json:"by_capacity,omitempty"`
	// Aside are figures that explain this one, such as CPU per operation beside a rate.
	Aside []aside `json:"aside,omitempty"`
}

// aside is a number that explains a figure.
type aside struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Values spread `json:"values"`
}

// Target is what a figure must reach; ok is judged by the median.
type Target struct {
	// Of is "ratio" or "ours".
	Of string `json:"of"`
	// Max tells whether Limit is the most allowed; otherwise it is the least.
	Max   bool    `json:"max"`
	Limit float64 `json:"limit"`
}

// AtMost is a target of which limit is the most allowed, AtLeast one of which it is the least.
func AtMost(of string, limit float64) *Target  { return &Target{Of: of, Max: true, Limit: limit} }
func AtLeast(of string, limit float64) *Target { return &Target{Of: of, Limit: limit} }

// Alone makes a figure without anything beside it.
func Alone(name, unit string, ours []float64, t *Target) Figure {
	return Figure{Name: name, Unit: unit, Ours: SpreadOf(ours), Target: t}
}

// Compare makes a figure of two series with one value per round each.
func Compare(name, unit string, ours []float64, besideName string, beside []float64, t *Target) Figure {
	f := Alone(name, unit, ours, t)
	f.Beside, f.BesideName, f.Ratio = new(SpreadOf(beside)), besideName, new(SpreadOf(ratios(ours, beside)))
	return f
}

// With adds an aside.
func (f Figure) With(name, unit string, values []float64) Figure {
	f.Aside = append(f.Aside, aside{Name: name, Unit: unit, Values: SpreadOf(values)})
	return f
}

// judged returns the figure with OK filled in.
func (f Figure) judged() Figure {
	if f.Target == nil {
		f.OK = true
		return f
	}
	got := math.NaN()
	switch {
	case f.Target.Of == "ours":
		got = f.Ours.Median
	case f.Ratio != nil:
		got = f.Ratio.Median
	}
	f.OK = f.Target.met(got)
	if !f.OK && f.shared() {
		f.ByCapacity = f.Target.met(f.Capacity.Median)
		f.OK = f.ByCapacity
	}
	return f
}

// met compares; what is not a number does not meet anything.
func (t *Target) met(got float64) bool {
	if t.Max {
		return got <= t.Limit
	}
	return got >= t.Limit
}

// shared tells whether a rate may be judged by CPU, because others used the machine too.
func (f Figure) shared() bool { return f.Capacity != nil && f.Foreign > foreignLimit }

// line is "figure | ours | beside it | ratio | target | ok", asides in brackets behind the name.
func (f Figure) line() string {
	name := f.Name
	if len(f.Aside) > 0 {
		asides := make([]string, len(f.Aside))
		for i, a := range f.Aside {
			asides[i] = strings.TrimSpace(a.Name + " " + short(a.Values.Median) + " " + a.Unit)
		}
		name += " (" + strings.Join(asides, ", ") + ")"
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
		if f.ByCapacity {
			ok += fmt.Sprintf(" (judged by CPU, enough for %s %s: others used %.0f %% of the machine)", short(f.Capacity.Median), f.Unit, 100*f.Foreign)
		}
	}
	return strings.Join([]string{name, f.Ours.text(f.Unit), beside, ratio, limit, ok}, " | ")
}

// quartilesFrom is how many rounds it takes until a line tells their quartiles too.
const quartilesFrom = 8

func (s spread) text(unit string) string {
	if s.Repeats == 0 {
		return "no data"
	}
	text := short(s.Median)
	if unit != "" {
		text += " " + unit
	}
	if s.Repeats > 1 {
		text += " [" + short(s.Min) + ".." + short(s.Max)
		if s.Repeats >= quartilesFrom {
			text += ", half " + short(s.Lower) + ".." + short(s.Upper)
		}
		text += "]"
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
