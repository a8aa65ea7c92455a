package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
)

// gap is the space between two columns.
const gap = 2

// section is a table of the screen: the first columns matter most, since the last ones are left out
// where they do not fit.
type section struct {
	header []string
	text   []bool // columns of words, which begin at the left
	rows   []row
}

// row is a line, and what it is sorted and found by.
type row struct {
	name         string
	cells        []string
	busy, behind float64
}

// The orders of rows.
const (
	byBusy   = "busiest"
	byBehind = "furthest behind"
	byNames  = "name"
)

var orders = []string{byBusy, byBehind, byNames}

// sections are the tables of a document: those whose names contain a text, in an order.
func (d *Document) sections(filter, order string) []section {
	reflections := section{header: []string{"REFLECTION", "CHANGES/S", "LAG", "PENDING", "STATE", "OBJECTS", "ERROR"}, text: []bool{0: true, 4: true, 6: true}}
	for _, r := range d.Reflections {
		reflections.add(r.Collection, number(r.Changes), r.Lag*1e6+float64(r.Pending),
			rate(r.Changes), span(&r.Lag), fmt.Sprint(r.Pending), r.State, fmt.Sprint(r.Objects), show.Dash(show.Printable(r.Error)))
	}
	collections := section{
		header: []string{"LOG AND INDEX", "LOG/S", "INDEX/S", "LAG", "HEARD", "STATE", "WATCHERS", "OBJECTS", "MEMORY", "ERROR"}, text: []bool{0: true, 5: true, 9: true},
	}
	for _, c := range d.Collections {
		collections.add(c.Collection, number(c.Log), float64(c.Lag)*1e6+number(c.Heard),
			rate(c.Log), rate(c.Applied), fmt.Sprint(c.Lag), span(c.Heard), c.State, fmt.Sprint(c.Watchers), fmt.Sprint(c.Objects), size(c.Memory), show.Dash(show.Printable(c.Error)))
	}
	queues := section{
		header: []string{"QUEUE", "READY", "DELAYED", "LEASED", "DEAD", "ADDS/S", "SETTLES/S", "WAIT", "WORK", "OLDEST", "STATE"}, text: []bool{0: true, 10: true},
	}
	for _, q := range d.Queues {
		queues.add(q.Queue, number(q.Adds)+number(q.Settles), float64(q.Ready)*1e6+q.Oldest,
			fmt.Sprint(q.Ready), fmt.Sprint(q.Delayed), fmt.Sprint(q.Leased), fmt.Sprint(q.Dead), rate(q.Adds), rate(q.Settles), span(q.Wait), span(q.Work), span(&q.Oldest), q.State)
	}
	held := section{header: []string{"HELD LONGEST", "FOR", "QUEUE", "HOLDER", "RETRIES"}, text: []bool{0: true, 2: true, 3: true}}
	for _, k := range d.Held {
		held.addKey(k, number(k.Held), span(k.Held), k.Queue, show.Dash(show.Printable(k.Holder)), fmt.Sprint(k.Retries))
	}
	backoffs := section{header: []string{"DEEPEST BACK-OFF", "FAILURES", "QUEUE", "DUE IN", "LAST REASON"}, text: []bool{0: true, 2: true, 4: true}}
	for _, k := range d.Backoffs {
		backoffs.addKey(k, float64(k.Retries), fmt.Sprint(k.Retries), k.Queue, span(k.Due), show.Dash(show.Printable(k.Reason)))
	}
	all := []section{reflections, collections, queues, held, backoffs}
	for i := range all {
		all[i].choose(filter, order)
	}
	return all
}

func (s *section) add(name string, busy, behind float64, cells ...string) {
	s.rows = append(s.rows, row{name, append([]string{show.Printable(name)}, cells...), busy, behind})
}

// addKey adds a key, which is found by its queue too.
func (s *section) addKey(k Key, much float64, cells ...string) {
	s.rows = append(s.rows, row{k.Key + " " + k.Queue, append([]string{show.Printable(k.Key)}, cells...), much, much})
}

// choose leaves the rows whose names contain a text, in an order.
func (s *section) choose(filter, order string) {
	filter = strings.ToLower(filter)
	s.rows = slices.DeleteFunc(s.rows, func(r row) bool { return !strings.Contains(strings.ToLower(r.name), filter) })
	slices.SortStableFunc(s.rows, func(a, b row) int {
		switch order {
		case byBusy:
			return cmp.Or(cmp.Compare(b.busy, a.busy), cmp.Compare(a.name, b.name))
		case byBehind:
			return cmp.Or(cmp.Compare(b.behind, a.behind), cmp.Compare(a.name, b.name))
		}
		return cmp.Compare(a.name, b.name)
	})
}

// lines are the header and the first rows, in columns that fit into a width; 0 is any width. Of
// more rows the last line says how many there are.
func (s *section) lines(width, most int) []string {
	shown := s.rows
	more := 0
	if len(shown) > most {
		more = len(shown) - max(most-1, 0)
		shown = shown[:max(most-1, 0)]
	}
	table := [][]string{s.header}
	for _, r := range shown {
		table = append(table, r.cells)
	}
	widths := make([]int, len(s.header))
	for _, cells := range table {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	columns, total := 1, widths[0]
	for ; columns < len(widths); columns++ {
		wide := widths[columns]
		if width > 0 && s.is(columns) { // words may be cut a little, with their column
			wide = min(wide, max(width-total-gap, utf8.RuneCountInString(s.header[columns])))
		}
		if total += gap + wide; width > 0 && total > width {
			break
		}
		widths[columns] = wide
	}
	out := make([]string, 0, len(table)+1)
	for _, cells := range table {
		var b strings.Builder
		for i, cell := range cells[:columns] {
			if i > 0 {
				b.WriteString(strings.Repeat(" ", gap))
			}
			cell = cut(cell, widths[i])
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if s.is(i) {
				b.WriteString(cell + pad)
			} else {
				b.WriteString(pad + cell)
			}
		}
		out = append(out, fit(strings.TrimRight(b.String(), " "), width))
	}
	if more > 0 {
		out = append(out, fit(fmt.Sprintf("and %d more", more), width))
	}
	return out
}

// is says that a column has words.
func (s *section) is(i int) bool { return i < len(s.text) && s.text[i] }

// fit cuts a line to a width; 0 is any width.
func fit(line string, width int) string {
	if width <= 0 {
		return line
	}
	return cut(line, width)
}

// cut shortens a text to so many characters, and shows that it did.
func cut(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	if most <= 0 {
		return ""
	}
	return string([]rune(text)[:most-1]) + "…"
}

func number(v *float64) float64 {
	if v == nil {
		return -1
	}
	return *v
}

// rate is a rate for people.
func rate(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v == 0:
		return "0"
	case *v < 10:
		return fmt.Sprintf("%.1f", *v)
	}
	return fmt.Sprintf("%.0f", *v)
}

// span is a time in seconds for people, of about three digits.
func span(v *float64) string {
	if v == nil {
		return "-"
	}
	d := time.Duration(*v * float64(time.Second))
	switch {
	case d >= 2*time.Minute:
		return show.ShortDuration(d)
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// size is a number of bytes for people.
func size(n int64) string {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.bytes {
			return fmt.Sprintf("%.1f%s", float64(n)/float64(unit.bytes), unit.name)
		}
	}
	return fmt.Sprint(n)
}
