package show

import (
	"io"
	"strings"
	"unicode/utf8"
)

// tableGap is the space between two columns.
const tableGap = 3

// aligned writes rows in aligned columns. It may be flushed again and again: its columns only ever
// become wider, so that what a watch prints line by line stays below its header.
type aligned struct {
	out    io.Writer
	rows   [][]string
	Widths []int
}

// Table writes rows in aligned columns.
func Table(out io.Writer, rows [][]string) error {
	t := aligned{out: out, rows: rows}
	return t.flush()
}

func (t *aligned) Row(cells []string) { t.rows = append(t.rows, cells) }

// flush writes the rows that are held back.
func (t *aligned) flush() error {
	for _, row := range t.rows {
		for i := range len(row) - 1 { // nothing stands behind the last cell
			if i == len(t.Widths) {
				t.Widths = append(t.Widths, 0)
			}
			t.Widths[i] = max(t.Widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var text strings.Builder
	for _, row := range t.rows {
		for i, cell := range row {
			text.WriteString(cell)
			if i < len(row)-1 {
				text.WriteString(strings.Repeat(" ", t.Widths[i]+tableGap-utf8.RuneCountInString(cell)))
			}
		}
		text.WriteByte('\n')
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.out, text.String())
	return err
}
