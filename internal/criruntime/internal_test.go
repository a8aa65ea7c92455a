package criruntime

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func FuzzLoad(f *testing.F) {
	for _, r := range []record{{Op: opBegin}, {Op: opImage, ID: "app"}, {Op: opStarted, ID: "nobody"}, {Op: opSandbox, ID: "x"}} {
		body, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
		f.Add(body[:10])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		path := filepath.Join(t.TempDir(), journalFile)
		log, err := journalFormat.Append(nil, func(b []byte) []byte { return append(b, body...) })
		if err != nil {
			return
		}
		if err := os.WriteFile(path, log, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := load(path, newState()); err != nil && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "byte 0")) {
			t.Errorf("load: %v, want ErrCorrupt with the place of the record", err)
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
