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

// fresh is what is known of both collections until a time, and heard of one of them until another.
func fresh(known, heard int) nodelifecycle.Fresh {
	return nodelifecycle.Fresh{Known: start.Add(time.Duration(known) * time.Second), Heard: start.Add(time.Duration(heard) * time.Second)}
}

// Leases stall, node objects flow: the grace is 50 s, the gap 20 s.
func TestSilenceIsMeasuredByWhatIsKnownOfBothCollections(t *testing.T) {
	t.Parallel()
	n := node("n", "", "True")
	seconds := func(s int) time.Duration { return time.Duration(s) * time.Second }
	look := func(m *nodelifecycle.Memory, l *nodelifecycle.Lease, f nodelifecycle.Fresh) (s nodelifecycle.Silence) {
		*m, s = rules.Look(*m, n, l, f, false)
		return s
	}
	t.Run("leases that stall make nobody silent, however long node objects flow", func(t *testing.T) {
		t.Parallel()
		var m nodelifecycle.Memory
		look(&m, lease("l0"), fresh(0, 0))
		for at := 5; at <= 600; at += 5 {
			if s := look(&m, lease("l0"), fresh(0, at)); s.For != 0 || s.Over() {
				t.Fatalf("at %d s it is silent for %v", at, s.For)
			}
		}
		if s := look(&m, lease("l0"), fresh(600, 600)); s.For != 0 {
			t.Errorf("when the leases are back it is silent for %v: one may have been missed", s.For)
		}
		if s := look(&m, lease("l0"), fresh(615, 615)); s.For != seconds(15) {
			t.Errorf("15 s later it is silent for %v", s.For)
		}
	})
	t.Run("a lag that stays delays what is found, and hides nothing", func(t *testing.T) {
		t.Parallel()
		var m nodelifecycle.Memory
		look(&m, lease("l0"), fresh(0, 30))
		for at := 5; at < 80; at += 5 {
			if s := look(&m, lease("l0"), fresh(at, at+30)); s.Over() {
				t.Fatalf("silent for %v at %d s, and it was heard of at 30 s", s.For, at)
			}
		}
		if s := look(&m, lease("l0"), fresh(80, 110)); !s.Over() || s.For != seconds(50) {
			t.Errorf("silent for %v, want 50 s since 30 s", s.For)
		}
	})
	t.Run("a heartbeat counts from when it may have been heard at the latest", func(t *testing.T) {
		t.Parallel()
		var m nodelifecycle.Memory
		look(&m, lease("l0"), fresh(0, 0))
		look(&m, lease("l1"), fresh(5, 40))
		for at := 20; at <= 80; at += 20 {
			look(&m, lease("l1"), fresh(at, at))
		}
		if s := look(&m, lease("l1"), fresh(85, 85)); s.For != seconds(45) || s.Over() {
			t.Errorf("silent for %v, want 45 s since 40 s", s.For)
		}
	})
	t.Run("after a gap it counts from what is known", func(t *testing.T) {
		t.Parallel()
		var m nodelifecycle.Memory
		look(&m, lease("l0"), fresh(0, 0))
		look(&m, lease("l0"), fresh(100, 140))
		if s := look(&m, lease("l0"), fresh(115, 140)); s.For != seconds(15) {
			t.Errorf("silent for %v, want 15 s", s.For)
		}
	})
	t.Run("another replica that is behind takes nothing back", func(t *testing.T) {
		t.Parallel()
		var m nodelifecycle.Memory
		for at := 0; at <= 45; at += 5 {
			s := look(&m, lease("l0"), fresh(at, at))
			if behind := look(&m, lease("l0"), fresh(at-30, at-30)); behind.For != s.For || behind.Left != s.Left {
				t.Fatalf("at %d s it is silent for %v by one replica, then for %v by one that is behind", at, s.For, behind.For)
			}
		}
		if s := look(&m, lease("l0"), fresh(50, 50)); !s.Over() {
			t.Errorf("silent for %v, want 50 s", s.For)
		}
	})
	t.Run("a node that never posted its status, made later than what is known", func(t *testing.T) {
		t.Parallel()
		for made, since := range map[int]int{59: 59, 60: 120, 100: 120} { // beyond the grace its time is no time to count from
			young := node("young", "", "")
			young.Metadata.CreationTimestamp = start.Add(seconds(made))
			m, _ := rules.Look(nodelifecycle.Memory{}, young, nil, fresh(0, 120), false)
			if !m.Since.Equal(start.Add(seconds(since))) {
				t.Errorf("made at %d s, silent since %v, want %d s", made, m.Since.Sub(start), since)
			}
		}
	})
}
