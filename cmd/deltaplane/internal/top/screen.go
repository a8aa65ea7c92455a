package top

import (
	"fmt"
	"strings"
	"time"
)

// view is what a user has chosen to see, and the size of the terminal.
type view struct {
	width, height int
	order         int
	filter        string
	typing        bool // the filter is being typed
}

// A key does something to the view; it reports whether the user is done.
func (v *view) press(key rune) (quit bool) {
	switch {
	case key == ctrlC || key == ctrlD:
		return true
	case !v.typing && (key == 'q' || key == 'Q'):
		return true
	case !v.typing && key == 's':
		v.order = (v.order + 1) % len(orders)
	case !v.typing && key == '/':
		v.typing, v.filter = true, ""
	case key == escape:
		v.typing, v.filter = false, ""
	case !v.typing:
	case key == '\r' || key == '\n':
		v.typing = false
	case key == backspace || key == '\b':
		if r := []rune(v.filter); len(r) > 0 {
			v.filter = string(r[:len(r)-1])
		}
	case key >= ' ':
		v.filter += string(key)
	}
	return false
}

// Keys that are no characters.
const (
	ctrlC     = '\x03'
	ctrlD     = '\x04'
	escape    = '\x1b'
	backspace = '\x7f'
)

// line is one of the screen.
type line struct {
	text string
	head bool
}

// screen are the lines of a document, as many as the terminal has and as wide; nil is a document
// that is yet to come. The tables share what height there is.
func (v *view) screen(d *Document) []line {
	lines := []line{{v.title(d), true}}
	if d == nil {
		return lines
	}
	for _, s := range d.notes() {
		lines = append(lines, line{fit(s, v.width), false})
	}
	sections := d.sections(v.filter, orders[v.order])
	shown := sections[:0]
	for _, s := range sections {
		if len(s.rows) > 0 {
			shown = append(shown, s)
		}
	}
	for i, rows := range share(v.height-len(lines), shown) {
		lines = append(lines, line{})
		for n, text := range shown[i].lines(v.width, rows) {
			lines = append(lines, line{text, n == 0})
		}
	}
	return lines[:min(len(lines), max(v.height, 1))]
}

// share are the rows that each section gets of a height: no more than it has, and else the same.
// Each takes two lines more, its header and what keeps it apart.
func share(height int, sections []section) []int {
	rows := make([]int, len(sections))
	left := height - 2*len(sections)
	for open := len(sections); open > 0 && left > 0; {
		each := max(left/open, 1)
		open = 0
		for i, s := range sections {
			more := min(each, len(s.rows)-rows[i], left)
			rows[i] += more
			left -= more
			if rows[i] < len(s.rows) {
				open++
			}
		}
	}
	return rows
}

func (v *view) title(d *Document) string {
	if v.typing {
		return fit("/"+v.filter+"_", v.width)
	}
	text := "deltaplane top"
	if d != nil {
		text += "  " + d.Time.Local().Format(time.TimeOnly)
	}
	text += "  by " + orders[v.order]
	if v.filter != "" {
		text += "  /" + v.filter
	}
	return fit(text+"  (q quits, s sorts, / filters)", v.width)
}

// notes are what must be known about a document: parts that are missing, and keys.
func (d *Document) notes() (out []string) {
	for _, s := range d.Silent {
		out = append(out, fmt.Sprintf("The %s at %s %s", s.Part, s.Address, s.Why))
	}
	if d.Unlooked > 0 {
		out = append(out, fmt.Sprintf("%d held and delayed keys were not looked at", d.Unlooked))
	}
	return out
}

// frame is what puts the lines of a screen into a terminal, in place of what was there.
func frame(lines []line) string {
	var b strings.Builder
	b.WriteString(home)
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(clearLine) // before the text: behind a full line it would take the last character
		if l.head {
			b.WriteString(bold + l.text + plain)
		} else {
			b.WriteString(l.text)
		}
	}
	b.WriteString(clearBelow)
	return b.String()
}
