package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/backoff"
)

const ms = time.Millisecond

func calls(l *backoff.Items[string], item string, n int, at time.Time) []time.Duration {
	var got []time.Duration
	for range n {
		got = append(got, l.When(item, at))
	}
	return got
}

func TestLimiterRowsOfUpstream(t *testing.T) {
	t.Parallel()
	exp := func(base, limit time.Duration) backoff.Limiter {
		return backoff.Limiter{Kind: backoff.Exponential, Base: base, Max: limit}
	}
	fastSlow := func(fast, slow time.Duration, n int) backoff.Limiter {
		return backoff.Limiter{Kind: backoff.FastSlow, Fast: fast, Slow: slow, MaxFast: n}
	}
	for _, tc := range []struct {
		name     string
		limiter  backoff.Limiter
		want     []time.Duration
		requeues int
	}{
		{"1 ms doubles", exp(ms, time.Second), []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms}, 5},
		{"max 0 is always 0", exp(ms, 0), []time.Duration{0, 0}, 2},
		{"three fast, then slow", fastSlow(5*ms, 10*time.Second, 3), []time.Duration{5 * ms, 5 * ms, 5 * ms, 10 * time.Second, 10 * time.Second}, 5},
		{"max of fast/slow and exponential", backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{
			fastSlow(5*ms, 3*time.Second, 3), exp(ms, time.Second),
		}}, []time.Duration{5 * ms, 5 * ms, 5 * ms, 3 * time.Second, 3 * time.Second}, 5},
		{"item based", backoff.ItemBased(), []time.Duration{ms, 2 * ms, 4 * ms}, 3},
		{"controller", backoff.Controller(), []time.Duration{5 * ms, 10 * ms, 20 * ms}, 3},
		{"no limiter", backoff.Limiter{}, []time.Duration{0, 0}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := backoff.NewItems[string](tc.limiter)
			now := time.Unix(1_700_000_000, 0)
			if diff := cmp.Diff(calls(l, "one", len(tc.want), now), tc.want); diff != "" {
				t.Errorf("When (-got +want):\n%s", diff)
			}
			if got := l.NumRequeues("one"); got != tc.requeues {
				t.Errorf("NumRequeues = %d, want %d", got, tc.requeues)
			}
			l.Forget("one")
			if got := l.NumRequeues("one"); got != 0 {
				t.Errorf("NumRequeues after Forget = %d, want 0", got)
			}
			if got := l.When("one", now.Add(time.Hour)); got != tc.want[0] {
				t.Errorf("When after Forget = %v, want %v", got, tc.want[0])
			}
		})
	}
}

func TestLimitersFollowTheMeasuredCurves(t *testing.T) {
	t.Parallel()
	at := []int{1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 19, 20, 21, 1001}
	for _, tc := range []struct {
		base time.Duration
		want []float64 // milliseconds
	}{
		{ms, []float64{1, 2, 4, 8, 16, 32, 128, 512, 2048, 16384, 131072, 262144, 524288, 1e6, 1e6}},
		{5 * ms, []float64{5, 10, 20, 40, 80, 160, 640, 2560, 10240, 81920, 655360, 1e6, 1e6, 1e6, 1e6}},
	} {
		l := backoff.NewItems[string](backoff.Limiter{Kind: backoff.Exponential, Base: tc.base, Max: 1000 * time.Second})
		all := calls(l, "x", 1001, time.Unix(0, 0))
		for i, n := range at {
			if want := time.Duration(tc.want[i] * float64(ms)); all[n-1] != want {
				t.Errorf("base %v: call %d = %v, want %v", tc.base, n, all[n-1], want)
			}
		}
	}
	l := backoff.NewItems[string](backoff.Limiter{Kind: backoff.Exponential, Base: time.Minute, Max: 1000 * time.Hour})
	all := calls(l, "x", 1001, time.Unix(0, 0))
	if all[2] != 4*time.Minute || all[1000] != 1000*time.Hour {
		t.Errorf("overflow test: third %v, last %v, want 4m and 1000h", all[2], all[1000])
	}
}

func TestABucketReservesAndNeverCancels(t *testing.T) {
	t.Parallel()
	l := backoff.NewItems[string](backoff.Limiter{Kind: backoff.Bucket, Rate: 10, Burst: 100})
	got := calls(l, "x", 105, time.Unix(1_700_000_000, 0))
	for i, d := range got {
		if want := time.Duration(max(0, i+1-100)) * 100 * ms; d != want {
			t.Fatalf("call %d = %v, want %v", i+1, d, want)
		}
	}
	if n := l.NumRequeues("x"); n != 0 {
		t.Errorf("NumRequeues = %d, want 0", n)
	}
	never := backoff.NewItems[string](backoff.Limiter{Kind: backoff.Bucket, Rate: 10})
	if d := never.When("x", time.Unix(0, 0)); d != math.MaxInt64 {
		t.Errorf("burst 0 waits %v, want about 292 years", d)
	}
}

func TestEveryLimiterIsCharged(t *testing.T) {
	t.Parallel()
	l := backoff.NewItems[string](backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{
		{Kind: backoff.Exponential, Base: time.Second, Max: time.Second},
		{Kind: backoff.Bucket, Rate: 1, Burst: 2},
	}})
	now := time.Unix(1_700_000_000, 0)
	want := []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second}
	if diff := cmp.Diff(calls(l, "x", 4, now), want); diff != "" {
		t.Errorf("tokens must be spent while the exponential binds (-got +want):\n%s", diff)
	}
}

func TestMaxWaitCapsTheResultOnly(t *testing.T) {
	t.Parallel()
	l := backoff.NewItems[string](backoff.Limiter{Kind: backoff.MaxWait, Max: 500 * time.Second, Of: []backoff.Limiter{
		{Kind: backoff.FastSlow, Fast: 5 * ms, Slow: 1000 * time.Second, MaxFast: 100},
	}})
	for i, d := range calls(l, "x", 200, time.Unix(0, 0)) {
		want := 5 * ms
		if i >= 100 {
			want = 500 * time.Second
		}
		if d != want {
			t.Fatalf("call %d = %v, want %v", i+1, d, want)
		}
	}
	if n := l.NumRequeues("x"); n != 200 {
		t.Errorf("NumRequeues = %d, want 200", n)
	}
}

func TestValidateNamesTheNode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		l    backoff.Limiter
		want string
	}{
		{"good", backoff.Controller(), ""},
		{"none", backoff.Limiter{}, ""},
		{"unknown kind", backoff.Limiter{Kind: "x"}, `limiter: unknown kind "x"`},
		{"burst", backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{{Kind: backoff.Bucket, Rate: 1}}}, "limiter.of[0]: burst 0 is below 1, no item would ever run"},
		{"rate", backoff.Limiter{Kind: backoff.Bucket, Rate: math.NaN(), Burst: 1}, "limiter: rate NaN is not a positive number"},
		{"base above max", backoff.Limiter{Kind: backoff.Exponential, Base: 2, Max: 1}, "limiter: base 2ns is above max 1ns"},
		{"negative", backoff.Limiter{Kind: backoff.FastSlow, Fast: -1}, "limiter: fast -1ns is negative"},
		{"empty max_of", backoff.Limiter{Kind: backoff.MaxOf}, "limiter: max_of needs at least one limiter"},
		{"empty max_wait", backoff.Limiter{Kind: backoff.MaxWait}, "limiter: max_wait needs exactly one limiter, has 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := tc.l.Validate(); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("Validate() = %q, want %q", got, tc.want)
			}
		})
	}
	deep := backoff.ItemBased()
	for range 40 {
		deep = backoff.Limiter{Kind: backoff.MaxWait, Of: []backoff.Limiter{deep}}
	}
	if deep.Validate() == nil {
		t.Error("a tree 40 deep was accepted")
	}
}

func FuzzWhenIsNeverNegative(f *testing.F) {
	f.Add(int64(5e6), int64(1e12), 10.0, 100, 3, int64(1_700_000_000_000_000))
	f.Fuzz(func(t *testing.T, base, limit int64, rate float64, burst, failures int, now int64) {
		l := backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{
			{Kind: backoff.Exponential, Base: time.Duration(base), Max: time.Duration(limit)},
			{Kind: backoff.Bucket, Rate: rate, Burst: burst},
		}}
		if l.Validate() != nil || failures < 0 || now < 0 {
			t.Skip()
		}
		tats := make([]float64, l.Buckets())
		for range 3 {
			if d := l.When(failures, now, tats); d < 0 {
				t.Fatalf("When = %v", d)
			}
		}
	})
}
