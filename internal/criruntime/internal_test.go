package criruntime

import (
	"bytes"
	"strings"
	"testing"
)

func FuzzReplay(f *testing.F) {
	good, err := encode(record{Op: opImage, ID: "app"})
	if err != nil {
		f.Fatal(err)
	}
	lost, err := encode(record{Op: opStarted, ID: "nobody"})
	if err != nil {
		f.Fatal(err)
	}
	empty, err := encode(record{Op: opSandbox, ID: "x"})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{good, good[:10], append(good, good...), lost, empty, []byte("\n"), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := newState()
		if err := replay(bytes.NewReader(text), s); err != nil && !strings.Contains(err.Error(), "line ") {
			t.Errorf("replay: %v, want the line named", err)
		}
	})
}

func FuzzReadPlan(f *testing.F) {
	f.Add("1", "0", "0.5", "true")
	f.Add("forever", "255", "1", "0")
	f.Add("1h", "-1", "NaN", "x")
	f.Fuzz(func(t *testing.T, run, code, rate, ignore string) {
		p, err := readPlan("main", nil, map[string]string{RunSecondsAnnotation: run, ExitCodeAnnotation: code, FailureRateAnnotation: rate, IgnoreTermAnnotation: ignore})
		if err != nil {
			if !strings.Contains(err.Error(), "deltaplane.io/") {
				t.Errorf("%v names no annotation", err)
			}
			return
		}
		if got := p.draw(); got < 0 || got > 255 || p.run < 0 || !(p.rate >= 0 && p.rate <= 1) {
			t.Errorf("plan %+v, code %d", p, got)
		}
	})
}
