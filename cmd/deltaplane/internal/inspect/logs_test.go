package inspect

import (
	"strings"
	"testing"
)

func FuzzCopyLogKeepsEveryText(f *testing.F) {
	f.Add("2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stdout P two \n2026-01-01T00:00:00Z stderr F three\nodd\n\n")
	f.Fuzz(func(t *testing.T, in string) {
		var out strings.Builder
		if err := copyLog(&out, strings.NewReader(in), false); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n > strings.Count(in, "\n")+1 {
			t.Errorf("%d lines of %q became %d", strings.Count(in, "\n"), in, n)
		}
	})
}

func TestALineInPartsIsOneLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	in := "t1 stdout F one\nt2 stdout P two \nt3 stdout F three\nnot of the format\nt4 stderr F  four"
	if err := copyLog(&out, strings.NewReader(in), true); err != nil || out.String() != "t1 one\nt2 two three\nnot of the format\nt4  four\n" {
		t.Errorf("%v: %q", err, out.String())
	}
}
