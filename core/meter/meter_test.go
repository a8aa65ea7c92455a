package meter_test

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/meter"
)

var start = time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)

func TestARateIsOfTheTimeBetweenTwoReadingsThatAreApart(t *testing.T) {
	t.Parallel()
	s := meter.Set{}
	at := start.Add
	if s.Count("q", 1, start, meter.Reading{100, 7}); len(s) != 1 {
		t.Fatalf("%d meters", len(s))
	}
	if _, known := s.Flow("q", start); known {
		t.Error("one reading tells a rate")
	}
	s.Count("q", 1, at(100*time.Millisecond), meter.Reading{1100, 7}) // at once: left out
	if _, known := s.Flow("q", at(time.Second)); known {
		t.Error("a reading that follows at once tells a rate")
	}
	s.Count("q", 1, at(2*time.Second), meter.Reading{1120, 9})
	if f, known := s.Flow("q", at(2*time.Second)); !known || f[0] != 510 || f[1] != 1 {
		t.Errorf("rates are %v, %v", f, known)
	}
	s.Count("q", 1, at(3*time.Second), meter.Reading{5, 0})
	if f, known := s.Flow("q", at(3*time.Second)); known {
		t.Errorf("counts that fell tell rates: %v", f)
	}
}

func TestThoseWhoAnsweredLatelyAddUpAndOthersAreForgotten(t *testing.T) {
	t.Parallel()
	s := meter.Set{}
	for i, after := range []time.Duration{0, time.Second} {
		s.Count("q", 1, start.Add(after), meter.Reading{int64(10 * i)})
		s.Count("q", 2, start.Add(after), meter.Reading{int64(2 * i)})
		s.Count("another", 2, start.Add(after), meter.Reading{int64(100 * i)})
	}
	if f, _ := s.Flow("q", start.Add(time.Second)); f[0] != 12 {
		t.Errorf("two servers add 10 and 2 a second, together %v", f[0])
	}
	if f, known := s.Flow("q", start.Add(12*time.Second)); known {
		t.Errorf("servers that answered long ago still add: %v", f)
	}
	s.Forget(start.Add(time.Minute))
	if len(s) != 2 || len(s["q"]) != 2 {
		t.Errorf("%d names after a minute, want 2", len(s))
	}
	if s.Forget(start.Add(2 * time.Minute)); len(s) != 0 {
		t.Errorf("%d names are left", len(s))
	}
}
