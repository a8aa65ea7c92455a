package nodelifecycle_test

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
)

func FuzzASilenceReadIsReadAgainAsItIsWritten(f *testing.F) {
	f.Add("silent since 2026-11-21T12:00:00.5Z, grace 50s", int64(45))
	f.Add("silent since 9999-12-31T23:59:59Z, grace -1s", int64(-1))
	f.Add("leases are not followed", int64(0))
	f.Fuzz(func(t *testing.T, text string, after int64) {
		s, ok := nodelifecycle.ParseSilence(text, start.Add(time.Duration(after%1e6)*time.Second))
		if !ok {
			return
		}
		again, ok := nodelifecycle.ParseSilence(s.String(), s.Since.Add(s.For))
		if !ok || again.Since.Compare(s.Since) != 0 || again.For != s.For || again.Left != s.Left {
			t.Errorf("%q is read %+v and, written %q, %+v %v", text, s, s.String(), again, ok)
		}
	})
}

func TestASilenceIsWrittenTheSameUntilTheNextHeartbeat(t *testing.T) {
	t.Parallel()
	n, l := node("n", "", "True"), lease("l0")
	m, first := follow(nodelifecycle.Memory{}, n, l, 0, 20*time.Second)
	_, later := follow(m, n, l, 25*time.Second, 45*time.Second)
	if first.String() != later.String() || first.For == later.For {
		t.Errorf("%q after %v, then %q after %v", first, first.For, later, later.For)
	}
	s, ok := nodelifecycle.ParseSilence(first.String(), start.Add(45*time.Second))
	if !ok || s != later {
		t.Errorf("read at the later time it is %+v, want %+v", s, later)
	}
}
