package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFigureIsOneLine(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]Figure{
		"cpu (rate 123) | 4 us [3..5] | echo 2 us [2..2] | 2 [1.5..2.5] | <= 1.8 | NO": Compare("cpu", "us", []float64{3, 4, 5}, "echo", []float64{2, 2, 2}, AtMost("ratio", 1.8)).With("rate", "", []float64{123}),
		"rate | 30000 cycles/s | asynq 10000 cycles/s | 3 | >= 25000 cycles/s | yes":   Compare("rate", "cycles/s", []float64{30_000}, "asynq", []float64{10_000}, AtLeast("ours", 25_000)),
		"p99 | 1.5 ms | - | - | - | -":                  Alone("p99", "ms", []float64{1.5}, nil),
		"many | 5 ms [1..9, half 3..7] | - | - | - | -": Alone("many", "ms", []float64{9, 8, 7, 6, 5, 4, 3, 2, 1}, nil),
		"none | no data | - | - | >= 1 s | NO":          Alone("none", "s", nil, AtLeast("ours", 1)),
	} {
		if got := f.judged().line(); got != want {
			t.Errorf("line = %q, want %q", got, want)
		}
	}
}

func TestARateIsJudgedByCPUOnlyWhenOthersUsedTheMachine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate, foreign, capacity float64
		ok, by                  bool
	}{{30, .5, 10, true, false}, {20, .05, 40, false, false}, {20, .5, 40, true, true}, {20, .5, 24, false, false}} {
		f := Alone("rate", "/s", []float64{c.rate}, AtLeast("ours", 25))
		f.Foreign, f.Capacity = c.foreign, new(SpreadOf([]float64{c.capacity}))
		f = f.judged()
		if f.OK != c.ok || f.ByCapacity != c.by {
			t.Errorf("%+v: ok %v by capacity %v", c, f.OK, f.ByCapacity)
		}
	}
}

// tiny is a family of one part.
func tiny(f Figure, err error) []Family {
	return []Family{{Name: "tiny", About: "a test", Parts: []Part{{"one", func(_ context.Context, b *Bench) error {
		b.Add(f)
		return err
	}}}}}
}

func TestRunTellsMissedTargetsFailuresAndUnknownNamesApart(t *testing.T) {
	t.Parallel()
	good := Alone("f", "s", []float64{1}, AtMost("ours", 2))
	bad := Alone("f", "s", []float64{3}, AtMost("ours", 2))
	broken := errors.New("broken")
	for _, c := range []struct {
		args  string
		known []Family
		want  error
		says  string
	}{
		{"tiny --quick", tiny(good, nil), nil, ""},
		{"--quick tiny", tiny(good, nil), nil, ""},
		{"tiny", tiny(bad, nil), ErrMissed, ""},
		{"tiny", tiny(good, broken), broken, "one failed: broken"},
		{"huge", tiny(good, nil), ErrUsage, "tiny     a test"},
		{"", tiny(good, nil), ErrUsage, "tiny     a test"},
		{"tiny tiny", tiny(good, nil), ErrUsage, "one family at a time"},
		{"tiny --frob", tiny(good, nil), ErrUsage, "not defined: -frob"},
		{"tiny --only (", tiny(good, nil), ErrUsage, "--only"},
	} {
		var stdout, stderr bytes.Buffer
		err := Run(t.Context(), c.known, strings.Fields(c.args), &stdout, &stderr)
		if !errors.Is(err, c.want) || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("bench %s = %v, saying %q, want %v saying %q", c.args, err, &stderr, c.want, c.says)
		}
	}
}

func TestTheJSONHoldsFiguresMachineAndWhatWasLeftOut(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out.json")
	known := tiny(Alone("f", "s", []float64{1, 2}, nil), nil)
	known[0].Parts = append(known[0].Parts, Part{"two", nil})
	if err := Run(t.Context(), known, []string{"tiny", "--only", "one", "-o", out}, &bytes.Buffer{}, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Figures) != 1 || r.Figures[0].Ours.Repeats != 2 || r.Machine.Cores == 0 || r.Machine.Go == "" {
		t.Errorf("report = %+v, want one figure of two repeats and the machine", r)
	}
	if len(r.LeftOut) != 1 || !strings.HasPrefix(r.LeftOut[0], "two: ") {
		t.Errorf("left out %q, want part two", r.LeftOut)
	}
}
