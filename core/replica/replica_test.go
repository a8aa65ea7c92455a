package replica_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/replica"
)

var t0 = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 60) + ".b-"
	for _, owner := range []string{"work", "work-3", long, "a.b", strings.Repeat("x", 47) + "-." + strings.Repeat("y", 20)} {
		for _, indexed := range []bool{false, true} {
			indexes := []int{replica.NoIndex}
			if indexed {
				indexes = []int{0, 3, 99_999}
			}
			seen := map[string]bool{}
			for _, uid := range []string{"u1", "u2"} {
				for _, o := range []int64{0, 1, 9, 10, 499, 1 << 40} {
					for _, ix := range indexes {
						c := replica.Child{Ordinal: o, Index: ix}
						n := replica.Name(owner, uid, c)
						if len(n) > replica.MaxName || strings.Contains(n, "--") || strings.Contains(n, ".-") || seen[n] {
							t.Errorf("Name(%q, %q, %v) = %q", owner, uid, c, n)
						}
						seen[n] = true
						if got, ok := replica.Parse(owner, uid, n, indexed); !ok || got != c {
							t.Errorf("Parse(%q) = %v, %v, want %v", n, got, ok, c)
						}
						if _, ok := replica.Parse(owner, "other", n, indexed); ok {
							t.Errorf("%q taken for a child of another UID", n)
						}
					}
				}
			}
		}
	}
}

func TestNamesThatNobodyGaveAreNoChildren(t *testing.T) {
	t.Parallel()
	name := func(owner string, index int, ordinal int64) string {
		return replica.Name(owner, "u", replica.Child{Ordinal: ordinal, Index: index})
	}
	plain := name("work", replica.NoIndex, 7)
	for _, bad := range []string{
		"", "-", "--", "work", "work-7", strings.TrimSuffix(plain, "7") + "07", strings.TrimSuffix(plain, "7") + "-7", plain + "x", name("work", replica.NoIndex, 1<<62),
		name("work", 3, 7), name("work-3", 4, 7),
	} {
		if c, ok := replica.Parse("work", "u", bad, false); ok {
			t.Errorf("Parse(%q) = %v, want none", bad, c)
		}
	}
	for _, bad := range []string{"", "-", "--", "---", plain, strings.Replace(name("work", 3, 7), "-3-", "-03-", 1), strings.Replace(name("work", 3, 7), "-3-", "--3-", 1)} {
		if c, ok := replica.Parse("work", "u", bad, true); ok {
			t.Errorf("Parse(%q) = %v, want none", bad, c)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("work", "u", "work-aaaaaaaa-1", false)
	f.Add("work", "u", "work-3-aaaaaaaa-1", true)
	f.Fuzz(func(t *testing.T, owner, uid, name string, indexed bool) {
		if c, ok := replica.Parse(owner, uid, name, indexed); ok && (replica.Name(owner, uid, c) != name || indexed == (c.Index == replica.NoIndex)) {
			t.Errorf("%q is not the name of %v", name, c)
		}
	})
}

func TestSlowStart(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		n       int
		good    int // so many succeed, then all fail
		batches []int
		skipped int
	}{
		{"nothing to do", 0, 0, nil, 0},
		{"batches double", 20, 20, []int{1, 2, 4, 8, 5}, 0},
		{"the first failure ends it", 100, 0, []int{1}, 99},
		{"limited pods, 10 of 100 admitted", 100, 10, []int{1, 2, 4, 8}, 85},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var batches []int
			next := 0
			skipped := replica.SlowStart(tc.n, func(first, size int) bool {
				if first != next {
					t.Errorf("batch begins at %d, want %d", first, next)
				}
				batches, next = append(batches, size), first+size
				return next <= tc.good
			})
			if diff := cmp.Diff(batches, tc.batches); diff != "" || skipped != tc.skipped {
				t.Errorf("%d skipped, want %d; batches (-got +want):\n%s", skipped, tc.skipped, diff)
			}
		})
	}
}

// TestSortingActivePods: any permutation comes out in the same order.
func TestRanking(t *testing.T) {
	t.Parallel()
	running := func(f func(*replica.Standing)) replica.Standing {
		s := replica.Standing{Bound: true, Phase: replica.Running, Ready: true, ReadySince: t0, Created: t0}
		f(&s)
		return s
	}
	want := []replica.Standing{
		{},                                    // unscheduled
		{Bound: true},                         // scheduled, pending
		{Bound: true, Phase: replica.Unknown}, // unknown phase
		{Bound: true, Phase: replica.Running}, // running, not ready
		running(func(s *replica.Standing) { s.ReadySince = time.Time{} }),
		running(func(s *replica.Standing) { s.ReadySince = t0.Add(time.Hour) }),                       // ready now
		running(func(s *replica.Standing) { s.Restarts = 7 }),                                         // more restarts
		running(func(s *replica.Standing) { s.SidecarRestarts = 3 }),                                  // more sidecar restarts
		running(func(s *replica.Standing) { s.SidecarRestarts = 1; s.Created = time.Time{} }),         // creation unknown
		running(func(s *replica.Standing) { s.SidecarRestarts = 1; s.Created = t0.Add(time.Minute) }), // newer
		running(func(s *replica.Standing) { s.SidecarRestarts = 1 }),                                  // older
		running(func(*replica.Standing) {}),                                                           // no restarts
	}
	for seed := range uint64(20) {
		got := slices.Clone(want)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, replica.Compare)
		if diff := cmp.Diff(got, want); diff != "" {
			t.Fatalf("seed %d, order (-got +want):\n%s", seed, diff)
		}
	}
}

// TestNewBackoffRecord.
func TestFailures(t *testing.T) {
	t.Parallel()
	at := func(s ...int) []time.Time {
		var out []time.Time
		for _, x := range s {
			out = append(out, t0.Add(time.Duration(x)*time.Second))
		}
		return out
	}
	rec := func(n int32, s int) replica.Failures {
		return replica.Failures{Count: n, Last: t0.Add(time.Duration(s) * time.Second)}
	}
	tests := []struct {
		name     string
		have     replica.Failures
		ok, fail []time.Time
		want     replica.Failures
	}{
		{"nothing new", rec(2, 1), nil, nil, rec(2, 1)},
		{"failures add up", rec(2, 1), nil, at(5), rec(3, 5)},
		{"the last failure counts, in any order", replica.Failures{}, nil, at(5, 9, 7), rec(3, 9)},
		{"two failures, then a success", replica.Failures{}, at(9), at(1, 2), replica.Failures{}},
		{"two failures, a success, two failures", replica.Failures{}, at(5), at(1, 2, 8, 7), rec(2, 8)},
		{"a success alone", rec(4, 1), at(9), nil, replica.Failures{}},
		{"the same time: the success is later", replica.Failures{}, at(5), at(5), replica.Failures{}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := tc.have.Add(tc.ok, tc.fail); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestGetRemainingBackoffTime: base 5 s, cap 700 s.
func TestWait(t *testing.T) {
	t.Parallel()
	tests := []struct {
		failures int32
		after    int
		want     int
	}{{0, 0, 0}, {1, 0, 5}, {1, 1, 4}, {1, 5, 0}, {1, 6, 0}, {3, 0, 20}, {8, 0, 640}, {9, 0, 700}, {1 << 30, 0, 700}}
	for _, tc := range tests {
		t.Run(fmt.Sprintf("%d failures, %d s ago", tc.failures, tc.after), func(t *testing.T) {
			t.Parallel()
			f := replica.Failures{Count: tc.failures, Last: t0}
			now := t0.Add(time.Duration(tc.after) * time.Second)
			if got := f.Wait(now, 5*time.Second, 700*time.Second); got != time.Duration(tc.want)*time.Second {
				t.Errorf("wait %v, want %d s", got, tc.want)
			}
		})
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	t.Run("ordinals are given out once, given back from the top only", func(t *testing.T) {
		t.Parallel()
		var l replica.Ledger
		if got := l.Take(3); !slices.Equal(got, []int64{0, 1, 2}) {
			t.Fatalf("took %v", got)
		}
		l.GiveBack([]int64{0, 2})
		if got := l.Take(1); !slices.Equal(got, []int64{2}) {
			t.Errorf("took %v after 0 and 2 came back, want 2", got)
		}
		l.Seen(9)
		l.Seen(4)
		if got := l.Take(1); !slices.Equal(got, []int64{10}) {
			t.Errorf("took %v after 9 was seen, want 10", got)
		}
	})
	t.Run("the first winner stays, runs join, the oldest go", func(t *testing.T) {
		t.Parallel()
		var l replica.Ledger
		for _, o := range []int64{5, 7, 6, 5} {
			l.Won(o, 1)
		}
		l.Won(6, 2)
		if diff := cmp.Diff(l.Contests, []replica.Contest{{From: 5, To: 7, Winner: 1}}); diff != "" {
			t.Fatalf("contests (-got +want):\n%s", diff)
		}
		if !l.Surplus(6, 2) || l.Surplus(6, 1) || l.Surplus(8, 2) {
			t.Error("surplus is what another token than the winner made")
		}
		for i := range int64(replica.MaxContests) {
			l.Won(100+2*i, uint64(10+i))
		}
		if len(l.Contests) != replica.MaxContests || l.Surplus(6, 2) {
			t.Errorf("%d contests, the oldest still there: %v", len(l.Contests), l.Surplus(6, 2))
		}
	})
	t.Run("any order of wins gives the same answers as a map", func(t *testing.T) {
		t.Parallel()
		for seed := range uint64(200) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			var l replica.Ledger
			model := map[int64]uint64{}
			for range 60 {
				o, w := rnd.Int64N(40), rnd.Uint64N(3)+1
				l.Won(o, w)
				if _, ok := model[o]; !ok {
					model[o] = w
				}
			}
			for o := range int64(40) {
				w, ok := l.Winner(o)
				if mw, mok := model[o]; w != mw || ok != mok {
					t.Fatalf("seed %d: winner of %d is %d, %v, want %d, %v", seed, o, w, ok, mw, mok)
				}
			}
		}
	})
}
