package harness

import (
	"runtime"
	"strings"
	"testing"
)

func TestAvailableMemoryIsReadInBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"MemTotal:       24682496 kB\nMemFree:  1 kB\nMemAvailable:   23012340 kB\nSwapTotal: 0 kB\n": 23012340 << 10,
		"MemTotal: 24682496 kB\n":     0,
		"MemAvailable: many kB\n":     0,
		"MemAvailable: 23012340 MB\n": 0,
		"":                            0,
	} {
		if got := available(text); got != want {
			t.Errorf("available(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestTouchedMemoryIsGivenBack(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	const size = 128 << 20
	var a atHand
	if a.Get(0); a.String() != "" {
		t.Errorf("a note of nothing: %q", a.String())
	}
	before := statusBytes("VmRSS")
	a.Get(size)
	if len(a.took) != 1 || a.most != size {
		t.Fatalf("touched %d times, %d bytes, want %d once", len(a.took), a.most, size)
	}
	if grown := statusBytes("VmHWM") - before; grown < size*3/4 {
		t.Errorf("the peak grew by %d bytes, want about %d", grown, size)
	}
	if kept := statusBytes("VmRSS") - before; kept > size/4 {
		t.Errorf("%d bytes are kept", kept)
	}
	if !strings.Contains(a.String(), "up to 0.1 GB") {
		t.Errorf("note %q", a.String())
	}
}
