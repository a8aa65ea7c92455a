package show

import (
	"strings"
	"testing"
)

func TestRowsFlushedLaterStandBelowTheHeader(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	table := aligned{out: &out, Widths: []int{7}}
	steps := [][][]string{
		{{"EVENT", "NAME", "STATUS"}, {"ADDED", "default/größe-1", "Running"}},
		{{"UPDATED", "x", "Complete"}, {"DELETED", "default/a-name-that-is-long"}},
		{},
		{{"ADDED", "a-longer-name-than-the-first", "Running"}},
		{{"ADDED", "y", "Running"}},
	}
	for _, rows := range steps {
		for _, row := range rows {
			table.Row(row)
		}
		if err := table.flush(); err != nil {
			t.Fatal(err)
		}
	}
	want := `EVENT     NAME              STATUS
ADDED     default/größe-1   Running
UPDATED   x                 Complete
DELETED   default/a-name-that-is-long
ADDED     a-longer-name-than-the-first   Running
ADDED     y                              Running
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
