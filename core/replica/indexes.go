package replica

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Interval is the indexes from First to Last, both included.
type Interval struct{ First, Last int }

// Indexes are indexes of children that each stand for one piece of work, as intervals in order that
// neither overlap nor touch. The zero value is none. Its methods leave it unchanged.
type Indexes []Interval

// ParseIndexes reads the text form, as [Indexes.String] writes it, of indexes below limit. Parts
// that cannot be read are left out, and so is what is not below limit.
func ParseIndexes(text string, limit int) Indexes {
	var all Indexes
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil || from < 0 || from >= limit {
			continue
		}
		to, err := strconv.Atoi(last)
		if err != nil || to < from {
			continue
		}
		all = append(all, Interval{from, min(to, limit-1)})
	}
	return all.joined()
}

// IndexesOf are the indexes given, in any order and any number of times.
func IndexesOf(indexes ...int) Indexes {
	all := make(Indexes, len(indexes))
	for i, ix := range indexes {
		all[i] = Interval{ix, ix}
	}
	return all.joined()
}

// Union are the indexes of both.
func (s Indexes) Union(o Indexes) Indexes {
	switch {
	case len(o) == 0:
		return s
	case len(s) == 0:
		return o
	}
	return slices.Concat(s, o).joined()
}

// joined puts intervals in order and joins those that overlap or touch. It changes s.
func (s Indexes) joined() Indexes {
	slices.SortFunc(s, func(a, b Interval) int { return cmp.Compare(a.First, b.First) })
	out := s[:0]
	for _, in := range s {
		if n := len(out); n > 0 && in.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, in.Last)
			continue
		}
		out = append(out, in)
	}
	return out
}

// Has reports whether an index is among them.
func (s Indexes) Has(index int) bool {
	i, ok := slices.BinarySearchFunc(s, index, func(in Interval, ix int) int { return cmp.Compare(in.First, ix) })
	return ok || i > 0 && index <= s[i-1].Last
}

// Len is how many indexes there are.
func (s Indexes) Len() int {
	n := 0
	for _, in := range s {
		n += in.Last - in.First + 1
	}
	return n
}

// Common is how many indexes are in both.
func (s Indexes) Common(o Indexes) int {
	n := 0
	for i, j := 0, 0; i < len(s) && j < len(o); {
		n += max(0, min(s[i].Last, o[j].Last)-max(s[i].First, o[j].First)+1)
		if s[i].Last < o[j].Last {
			i++
		} else {
			j++
		}
	}
	return n
}

// Free are the lowest n indexes below limit that are not among them; fewer where there are not so
// many.
func (s Indexes) Free(n, limit int) []int {
	var free []int
	next := 0
	for _, in := range append(slices.Clone(s), Interval{limit, limit}) {
		for ; next < min(in.First, limit) && len(free) < n; next++ {
			free = append(free, next)
		}
		next = max(next, in.Last+1)
	}
	return free
}

// String is the text form of a Job's status: "1,3-5,7". Two neighbours are written "4,5".
func (s Indexes) String() string {
	var b []byte
	for _, in := range s {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(in.First), 10)
		switch {
		case in.Last == in.First+1:
			b = append(b, ',')
			b = strconv.AppendInt(b, int64(in.Last), 10)
		case in.Last > in.First:
			b = append(b, '-')
			b = strconv.AppendInt(b, int64(in.Last), 10)
		}
	}
	return string(b)
}
