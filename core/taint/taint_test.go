package taint_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/taint"
)

var (
	now    = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	rules  taint.Rules
	before = func(d time.Duration) *time.Time { return new(now.Add(-d)) }
)

func execute(key string, at *time.Time) taint.Taint {
	return taint.Taint{Key: key, Value: "v", Effect: taint.NoExecute, TimeAdded: at}
}

func tolerate(key string, seconds *int64) taint.Toleration {
	return taint.Toleration{Key: key, Operator: taint.Exists, Effect: taint.NoExecute, Seconds: seconds}
}

func TestTolerationsMatchTaints(t *testing.T) {
	t.Parallel()
	x := taint.Taint{Key: "k", Value: "v", Effect: taint.NoExecute}
	number := taint.Taint{Key: "k", Value: "5", Effect: taint.NoExecute}
	for _, c := range []struct {
		name  string
		t     taint.Toleration
		x     taint.Taint
		rules taint.Rules
		want  bool
	}{
		{"equal in everything", taint.Toleration{Key: "k", Operator: "Equal", Value: "v", Effect: "NoExecute"}, x, rules, true},
		{"no operator is Equal", taint.Toleration{Key: "k", Value: "v", Effect: "NoExecute"}, x, rules, true},
		{"Equal compares the value", taint.Toleration{Key: "k", Value: "w", Effect: "NoExecute"}, x, rules, false},
		{"Exists takes any value", taint.Toleration{Key: "k", Operator: "Exists", Effect: "NoExecute"}, x, rules, true},
		{"no effect is every effect", taint.Toleration{Key: "k", Operator: "Exists"}, x, rules, true},
		{"another effect", taint.Toleration{Key: "k", Operator: "Exists", Effect: "NoSchedule"}, x, rules, false},
		{"no key is every key", taint.Toleration{Operator: "Exists"}, x, rules, true},
		{"another key", taint.Toleration{Key: "l", Operator: "Exists"}, x, rules, false},
		{"an unknown operator matches nothing", taint.Toleration{Key: "k", Operator: "In", Value: "v"}, x, rules, false},
		{"operators are case-sensitive", taint.Toleration{Key: "k", Operator: "exists"}, x, rules, false},
		{"Gt is off", taint.Toleration{Key: "k", Operator: "Gt", Value: "4"}, number, rules, false},
		{"Gt", taint.Toleration{Key: "k", Operator: "Gt", Value: "4"}, number, taint.Rules{Numeric: true}, true},
		{"Gt is strict", taint.Toleration{Key: "k", Operator: "Gt", Value: "5"}, number, taint.Rules{Numeric: true}, false},
		{"Lt", taint.Toleration{Key: "k", Operator: "Lt", Value: "6"}, number, taint.Rules{Numeric: true}, true},
		{"Lt of no number", taint.Toleration{Key: "k", Operator: "Lt", Value: "6"}, x, taint.Rules{Numeric: true}, false},
		{"Lt than no number", taint.Toleration{Key: "k", Operator: "Lt", Value: "six"}, number, taint.Rules{Numeric: true}, false},
	} {
		if got := c.rules.Tolerates(c.t, c.x); got != c.want {
			t.Errorf("%s: Tolerates() = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAPodStaysForTheMinimumTolerationTime(t *testing.T) {
	t.Parallel()
	const forever = time.Duration(math.MaxInt64)
	just := before(0)
	for _, c := range []struct {
		name   string
		taints []taint.Taint
		list   []taint.Toleration
		want   time.Duration // from now; forever
	}{
		// TestCreatePod, TestCreateNode
		{"no taints", nil, nil, forever},
		{"NoSchedule does not evict", []taint.Taint{{Key: "a", Effect: taint.NoSchedule, TimeAdded: just}}, nil, forever},
		{"an unknown effect does not evict", []taint.Taint{{Key: "a", Effect: "NoRun", TimeAdded: just}}, nil, forever},
		{"tainted", []taint.Taint{execute("a", just)}, nil, 0},
		{"tolerates 100 s", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", new(int64(100)))}, 100 * time.Second},
		{"tolerates for ever", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", nil)}, forever},
		{"tolerates another taint", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("b", nil)}, 0},
		// TestUpdateNode, TestUpdateNodeWithMultiplePods
		{"one of two tolerated", []taint.Taint{execute("a", just), execute("b", just)}, []taint.Toleration{tolerate("a", new(int64(100)))}, 0},
		{"1 s and 100 s", []taint.Taint{execute("a", just), execute("b", just)}, []taint.Toleration{tolerate("a", new(int64(1))), tolerate("b", new(int64(100)))}, time.Second},
		// TestGetMinTolerationTime
		{"[nil]: never", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", nil)}, forever},
		{"[1,2]: 1 s", []taint.Taint{execute("a", just), execute("b", just)}, []taint.Toleration{tolerate("a", new(int64(1))), tolerate("b", new(int64(2)))}, time.Second},
		{"[1,nil]: 1 s", []taint.Taint{execute("a", just), execute("b", just)}, []taint.Toleration{tolerate("a", new(int64(1))), tolerate("b", nil)}, time.Second},
		{"[nil,1]: 1 s", []taint.Taint{execute("a", just), execute("b", just)}, []taint.Toleration{tolerate("a", nil), tolerate("b", new(int64(1)))}, time.Second},
		// the first matching toleration counts
		{"first matching is longer", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", new(int64(100))), tolerate("a", new(int64(1)))}, 100 * time.Second},
		{"first matching is shorter", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("", new(int64(1))), tolerate("a", new(int64(100)))}, time.Second},
		// bad input
		{"zero seconds", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", new(int64(0)))}, 0},
		{"negative seconds", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", new(int64(-7)))}, 0},
		{"the most negative", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", new(int64(math.MinInt64)))}, 0},
		{"huge seconds", []taint.Taint{execute("a", just)}, []taint.Toleration{tolerate("a", new(int64(math.MaxInt64)))}, forever},
		{"an unknown operator", []taint.Taint{execute("a", just)}, []taint.Toleration{{Key: "a", Operator: "Near", Seconds: new(int64(100))}}, 0},
		// The base is the taint's own time
		{"placed 40 s ago", []taint.Taint{execute("a", before(40*time.Second))}, []taint.Toleration{tolerate("a", new(int64(100)))}, 60 * time.Second},
		{"placed too long ago", []taint.Taint{execute("a", before(time.Hour))}, []taint.Toleration{tolerate("a", new(int64(100)))}, 100*time.Second - time.Hour},
		{"a later, stricter taint", []taint.Taint{execute("a", before(90*time.Second)), execute("b", before(5*time.Second))}, []taint.Toleration{tolerate("a", new(int64(300))), tolerate("b", new(int64(10)))}, 5 * time.Second},
	} {
		stay, _ := rules.Stay(now, c.taints, taint.Pod{Tolerations: c.list}, nil)
		got := forever
		if !stay.Forever() {
			got = stay.Ends.Sub(now)
		}
		if got != c.want {
			t.Errorf("%s: the stay ends after %v, want %v", c.name, got, c.want)
		}
		if stay.Due(now) != (c.want <= 0) {
			t.Errorf("%s: Due() = %v with %v left", c.name, stay.Due(now), c.want)
		}
	}
}

func TestATaintCountsFromThePodsBindingWhenThatWasLater(t *testing.T) {
	t.Parallel()
	list := []taint.Toleration{tolerate("a", new(int64(100)))}
	stay, _ := rules.Stay(now, []taint.Taint{execute("a", before(time.Hour))}, taint.Pod{Tolerations: list, Bound: now.Add(-30 * time.Second)}, nil)
	if got := stay.Ends.Sub(now); got != 70*time.Second {
		t.Errorf("a pod bound 30 s ago goes in %v, want 70s", got)
	}
	stay, _ = rules.Stay(now, []taint.Taint{execute("a", before(time.Hour))}, taint.Pod{Tolerations: list, Bound: now.Add(time.Hour)}, nil)
	if got := stay.Ends.Sub(now); got != 100*time.Second {
		t.Errorf("a pod bound in the future goes in %v, want 100s", got)
	}
}

func TestATaintWithoutAUsableTimeCountsFromWhenItWasFirstSeen(t *testing.T) {
	t.Parallel()
	pod := taint.Pod{Tolerations: []taint.Toleration{tolerate("", new(int64(100)))}}
	for _, c := range []struct {
		name  string
		taint taint.Taint
	}{
		{"no time", execute("a", nil)},
		{"the zero time", execute("a", new(time.Time{}))},
		{"a time in the future", execute("a", before(-3*time.Hour))},
	} {
		first, seen := rules.Stay(now, []taint.Taint{c.taint}, pod, nil)
		if got := first.Ends.Sub(now); got != 100*time.Second || len(seen) != 1 {
			t.Fatalf("%s: goes in %v with %d kept, want 100s and 1", c.name, got, len(seen))
		}
		// Later judgements, also after the time named has come, move nothing.
		for _, later := range []time.Duration{time.Second, 99 * time.Second, 4 * time.Hour} {
			var again taint.Stay
			again, seen = rules.Stay(now.Add(later), []taint.Taint{c.taint}, pod, seen)
			if !again.Ends.Equal(first.Ends) || len(seen) != 1 {
				t.Errorf("%s: %v later the end is %v, want %v", c.name, later, again.Ends, first.Ends)
			}
		}
		// Taken away, nothing is kept of it, and placed again it counts again.
		_, seen = rules.Stay(now.Add(time.Second), nil, pod, seen)
		if len(seen) != 0 {
			t.Errorf("%s: a taint that is gone is kept: %v", c.name, seen)
		}
	}
	_, seen := rules.Stay(now, []taint.Taint{execute("a", before(time.Second))}, pod, nil)
	if len(seen) != 0 {
		t.Errorf("a taint that says its time is kept: %v", seen)
	}
	ahead := execute("a", before(-time.Hour))
	_, seen = rules.Stay(now, []taint.Taint{ahead}, pod, nil)
	again := execute("a", before(-2*time.Hour))
	stay, _ := rules.Stay(now.Add(time.Minute), []taint.Taint{again}, pod, seen)
	if got := stay.Ends.Sub(now); got != 160*time.Second {
		t.Errorf("a taint placed again goes by the first one's time: %v, want 2m40s", got)
	}
}

func TestTheFingerprintChangesWithTheNoExecuteTaintsOnly(t *testing.T) {
	t.Parallel()
	a, b := execute("a", before(time.Second)), execute("b", nil)
	base := taint.Fingerprint([]taint.Taint{a, b})
	for _, c := range []struct {
		name string
		list []taint.Taint
		same bool
	}{
		{"another order", []taint.Taint{b, a}, true},
		{"a NoSchedule taint more", []taint.Taint{a, b, {Key: "c", Effect: taint.NoSchedule}}, true},
		{"one less", []taint.Taint{a}, false},
		{"another value", []taint.Taint{a, {Key: "b", Value: "w", Effect: taint.NoExecute}}, false},
		{"placed again", []taint.Taint{execute("a", before(0)), b}, false},
	} {
		if got := taint.Fingerprint(c.list) == base; got != c.same {
			t.Errorf("%s: same = %v, want %v", c.name, got, c.same)
		}
	}
	if got := taint.Fingerprint(nil); got != "" {
		t.Errorf("Fingerprint() of none = %q", got)
	}
}

func TestDefaultTolerations(t *testing.T) {
	t.Parallel()
	notReady := tolerate(taint.NotReady, new(int64(300)))
	unreachable := tolerate(taint.Unreachable, new(int64(300)))
	own := func(key string) taint.Toleration { return tolerate(key, new(int64(700))) }
	d := taint.StandardDefaults()
	for _, c := range []struct { // TestForgivenessAdmission; order matters
		name string
		have []taint.Toleration
		want []taint.Toleration
	}{
		{"none", nil, []taint.Toleration{notReady, unreachable}},
		{"an unrelated toleration", []taint.Toleration{{Key: "foo", Operator: "Equal", Value: "bar", Effect: "NoSchedule", Seconds: new(int64(700))}}, []taint.Toleration{notReady, unreachable}},
		{"only not-ready 700", []taint.Toleration{own(taint.NotReady)}, []taint.Toleration{unreachable}},
		{"only unreachable 700", []taint.Toleration{own(taint.Unreachable)}, []taint.Toleration{notReady}},
		{"both 700", []taint.Toleration{own(taint.NotReady), own(taint.Unreachable)}, nil},
		{"unreachable with an empty effect", []taint.Toleration{{Key: taint.Unreachable, Operator: "Exists", Seconds: new(int64(700))}}, []taint.Toleration{notReady}},
		{"keyless Exists 700", []taint.Toleration{{Operator: "Exists", Seconds: new(int64(700))}}, nil},
		{"a DaemonSet pod's, without seconds", []taint.Toleration{tolerate(taint.NotReady, nil), tolerate(taint.Unreachable, nil)}, nil},
		{"operator, value and seconds are not looked at", []taint.Toleration{{Key: taint.NotReady, Operator: "Lt", Value: "9", Effect: "NoExecute", Seconds: new(int64(-1))}}, []taint.Toleration{unreachable}},
		{"NoSchedule does not speak for it", []taint.Toleration{{Key: taint.NotReady, Operator: "Exists", Effect: "NoSchedule"}}, []taint.Toleration{notReady, unreachable}},
	} {
		got := d.Missing(c.have)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: Missing() (-want +got):\n%s", c.name, diff)
		}
		if again := d.Missing(append(slices.Clip(c.have), got...)); again != nil {
			t.Errorf("%s: asked again, %v are missing: not idempotent", c.name, again)
		}
	}
	if err := (taint.Defaults{NotReady: -1, Unreachable: -2}).Validate(); err == nil {
		t.Error("negative seconds are accepted")
	}
	if got := (taint.Defaults{NotReady: 0, Unreachable: 5}).Missing(nil); *got[0].Seconds != 0 || *got[1].Seconds != 5 {
		t.Errorf("seconds are not as configured: %v", got)
	}
}

func FuzzStayNeverEndsEarlierThanTolerated(f *testing.F) {
	f.Add(int64(5), int64(-3), int64(0), "Exists")
	f.Add(int64(math.MaxInt64), int64(1<<40), int64(77), "")
	f.Fuzz(func(t *testing.T, seconds, placed, bound int64, op string) {
		placed, bound = placed%(1<<35), bound%(1<<35)
		x := execute("a", new(now.Add(time.Duration(placed)*time.Second)))
		pod := taint.Pod{Tolerations: []taint.Toleration{{Operator: op, Value: "v", Seconds: &seconds}}, Bound: now.Add(time.Duration(bound) * time.Second)}
		stay, seen := rules.Stay(now, []taint.Taint{x}, pod, nil)
		if stay.Forever() {
			if seconds <= 0 {
				t.Fatalf("%d seconds are for ever", seconds)
			}
			return
		}
		if matched := rules.Tolerates(pod.Tolerations[0], x); matched && stay.Ends.Sub(stay.Since) != time.Duration(max(seconds, 0))*time.Second {
			t.Fatalf("stay %+v with %d seconds", stay, seconds)
		}
		later, _ := rules.Stay(now.Add(time.Minute), []taint.Taint{x}, pod, seen)
		if later.Ends.Before(stay.Ends) {
			t.Fatalf("the end moved back from %v to %v", stay.Ends, later.Ends)
		}
	})
}

func TestTaintsThatChangeMoveARunningCountdownOnlyEarlier(t *testing.T) {
	t.Parallel()
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name                string
		stay, running, want time.Time
	}{
		{"no countdown runs", at(300), time.Time{}, at(300)},
		{"a later end does not hold", at(300), at(100), at(100)},
		{"an earlier end does", at(50), at(100), at(50)},
		{"for ever cancels it", time.Time{}, at(100), time.Time{}},
	} {
		if got := (taint.Stay{Ends: c.stay}).Continue(c.running).Ends; !got.Equal(c.want) {
			t.Errorf("%s: ends at %v, want %v", c.name, got, c.want)
		}
	}
}

func TestFingerprintsOfTolerationsTellEveryDifference(t *testing.T) {
	t.Parallel()
	a, b := tolerate("a", nil), tolerate("b", new(int64(0)))
	seen := map[string]int{}
	for i, list := range [][]taint.Toleration{
		nil,
		{a},
		{b},
		{a, b},
		{b, a},
		{tolerate("a", new(int64(0)))},
		{tolerate("a", new(int64(1)))},
		{{Key: "a", Operator: taint.Exists}},
		{{Key: "a", Operator: taint.Equal, Effect: taint.NoExecute}},
		{{Key: "a", Operator: taint.Exists, Effect: taint.NoExecute, Value: "v"}},
	} {
		p := taint.FingerprintOf(list)
		if other, ok := seen[p]; ok || len(p) != 16 {
			t.Errorf("list %d has the fingerprint %q, as list %d", i, p, other)
		}
		seen[p] = i
		if taint.FingerprintOf(slices.Clone(list)) != p {
			t.Errorf("list %d has two fingerprints", i)
		}
	}
}
