package backoff

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Kind names what a [Limiter] does.
type Kind string

// The kinds of limiter. The zero Kind is no limiter: every delay is zero.
const (
	None        Kind = ""
	Exponential Kind = "exponential" // min(Base*2^failures, Max)
	FastSlow    Kind = "fast_slow"   // Fast for the first MaxFast calls, then Slow
	Bucket      Kind = "bucket"      // Rate tokens a second, Burst of them at once
	MaxOf       Kind = "max_of"      // the longest delay of all in Of
	MaxWait     Kind = "max_wait"    // the one limiter in Of, its result capped at Max
)

// Forever is the delay of a bucket that never has a token (about 292 years).
const Forever = time.Duration(math.MaxInt64)

// MaxDepth and MaxNodes bound a limiter tree.
const (
	MaxDepth = 8
	MaxNodes = 32
)

// Limiter is one node of a limiter tree. Only the fields of its Kind are read.
// Delays have a resolution of one microsecond, rounded up.
type Limiter struct {
	Kind Kind `json:"kind,omitempty"`

	Base time.Duration `json:"base,omitempty"` // exponential: the first delay
	Max  time.Duration `json:"max,omitempty"`  // exponential, max_wait: the longest delay

	Fast    time.Duration `json:"fast,omitempty"`
	Slow    time.Duration `json:"slow,omitempty"`
	MaxFast int           `json:"max_fast,omitempty"`

	Rate  float64 `json:"rate,omitempty"` // tokens a second
	Burst int     `json:"burst,omitempty"`

	Of []Limiter `json:"of,omitempty"`
}

// Controller is client-go's default controller limiter: the longer of an
// exponential 5 ms to 1000 s and a bucket of 10 a second with a burst of 100.
func Controller() Limiter {
	return Limiter{Kind: MaxOf, Of: []Limiter{
		{Kind: Exponential, Base: 5 * time.Millisecond, Max: 1000 * time.Second},
		{Kind: Bucket, Rate: 10, Burst: 100},
	}}
}

// ItemBased is client-go's default item-based limiter: exponential, 1 ms to
// 1000 s.
func ItemBased() Limiter {
	return Limiter{Kind: Exponential, Base: time.Millisecond, Max: 1000 * time.Second}
}

// PriorityQueue is controller-runtime's default with its priority queue:
// exponential 5 ms to 1000 s without a bucket.
func PriorityQueue() Limiter {
	return Limiter{Kind: Exponential, Base: 5 * time.Millisecond, Max: 1000 * time.Second}
}

// Buckets is how many buckets the tree holds: the length of the state that
// [Limiter.When] needs.
func (l Limiter) Buckets() int {
	n := 0
	if l.Kind == Bucket {
		n = 1
	}
	for _, c := range l.Of {
		n += c.Buckets()
	}
	return n
}

// When is the delay of one call for an item that failed failures times since it
// was last forgotten. Now is in microseconds of any epoch; tats holds one
// theoretical arrival time per bucket in depth-first order (zero means a full
// bucket) and is advanced. Every limiter of the tree is charged, also those
// that do not bind. The result is never negative.
func (l Limiter) When(failures int, now int64, tats []float64) time.Duration {
	us := l.Micros(failures, now, tats)
	if us >= float64(math.MaxInt64/1000) {
		return Forever
	}
	return time.Duration(us) * time.Microsecond
}

// Micros is [Limiter.When] in whole microseconds, infinite for never.
func (l Limiter) Micros(failures int, now int64, tats []float64) float64 {
	us, _ := l.when(failures, float64(now), tats, false)
	return math.Ceil(us)
}

// Spend is [Limiter.Micros] with tokens that were taken before by
// [Limiter.Reserve], wherever the time is: froms holds, per bucket, when the
// next of them comes, and is advanced by an interval.
func (l Limiter) Spend(failures int, now int64, froms []float64) float64 {
	us, _ := l.when(failures, float64(now), froms, true)
	return math.Ceil(us)
}

// Reserve takes n tokens of every bucket at once and returns, per bucket, when
// the first of them comes, in microseconds; each next one comes an interval
// (a million by the rate) later.
func (l Limiter) Reserve(n int, now int64, tats []float64) []float64 {
	froms := make([]float64, 0, len(tats))
	l.reserve(float64(n), float64(now), tats, &froms)
	return froms
}

func (l Limiter) reserve(n, now float64, tats []float64, froms *[]float64) []float64 {
	if l.Kind == Bucket {
		from := max(tats[0], now)
		*froms = append(*froms, from)
		tats[0] = from + float64(n*(1e6/l.Rate))
		return tats[1:]
	}
	for _, c := range l.Of {
		tats = c.reserve(n, now, tats, froms)
	}
	return tats
}

// Return gives n tokens of every bucket back that were taken by
// [Limiter.Reserve] and not spent.
func (l Limiter) Return(n int, tats []float64) { l.giveBack(float64(n), tats) }

func (l Limiter) giveBack(n float64, tats []float64) []float64 {
	if l.Kind == Bucket {
		tats[0] -= float64(n * (1e6 / l.Rate))
		return tats[1:]
	}
	for _, c := range l.Of {
		tats = c.giveBack(n, tats)
	}
	return tats
}

// when works in float microseconds with the operations, in the order, that the
// Redis engine's script uses, so that both give the same bits. Products are
// converted before they are added: Go may otherwise fuse the two.
func (l Limiter) when(f int, now float64, tats []float64, spend bool) (float64, []float64) {
	switch l.Kind {
	case Exponential:
		d := micros(l.Base)
		if d > 0 {
			d *= math.Pow(2, float64(f))
		}
		return min(d, micros(l.Max)), tats
	case FastSlow:
		if f+1 <= l.MaxFast {
			return micros(l.Fast), tats
		}
		return micros(l.Slow), tats
	case Bucket:
		if l.Burst < 1 || l.Rate <= 0 {
			return math.Inf(1), tats[1:]
		}
		t, interval := tats[0], 1e6/l.Rate
		if !spend {
			t = max(t, now)
		}
		tats[0] = t + interval
		return max(0, t-float64(float64(l.Burst-1)*interval)-now), tats[1:]
	case MaxOf:
		longest := 0.0
		for _, c := range l.Of {
			var d float64
			d, tats = c.when(f, now, tats, spend)
			longest = max(longest, d)
		}
		return longest, tats
	case MaxWait:
		d := 0.0
		if len(l.Of) > 0 {
			d, tats = l.Of[0].when(f, now, tats, spend)
		}
		return min(d, micros(l.Max)), tats
	default:
		return 0, tats
	}
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// Validate reports every fault of the tree, naming the path of the node.
// It refuses what can never work (a bucket without rate or burst, a maximum
// below the base) although the limiters define a result for it.
func (l Limiter) Validate() error {
	nodes := 0
	return l.validate("limiter", 1, &nodes)
}

func (l Limiter) validate(path string, depth int, nodes *int) error {
	if *nodes++; *nodes > MaxNodes {
		return fmt.Errorf("%s: more than %d limiters", path, MaxNodes)
	}
	if depth > MaxDepth {
		return fmt.Errorf("%s: deeper than %d levels", path, MaxDepth)
	}
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(path+": "+format, args...))
		}
	}
	kids := 0
	switch l.Kind {
	case None:
	case Exponential:
		bad(l.Base < 0, "base %v is negative", l.Base)
		bad(l.Max < 0, "max %v is negative", l.Max)
		bad(l.Max > 0 && l.Base > l.Max, "base %v is above max %v", l.Base, l.Max)
	case FastSlow:
		bad(l.Fast < 0, "fast %v is negative", l.Fast)
		bad(l.Slow < 0, "slow %v is negative", l.Slow)
		bad(l.MaxFast < 0, "max_fast %d is negative", l.MaxFast)
	case Bucket:
		bad(!(l.Rate > 0) || math.IsInf(l.Rate, 0), "rate %v is not a positive number", l.Rate)
		bad(l.Rate > 0 && l.Rate < 1e-6, "rate %v is below one in a million seconds", l.Rate)
		bad(l.Burst < 1, "burst %d is below 1, no item would ever run", l.Burst)
	case MaxOf:
		bad(len(l.Of) == 0, "max_of needs at least one limiter")
		kids = len(l.Of)
	case MaxWait:
		bad(l.Max < 0, "max %v is negative", l.Max)
		bad(len(l.Of) != 1, "max_wait needs exactly one limiter, has %d", len(l.Of))
		kids = len(l.Of)
	default:
		bad(true, "unknown kind %q", l.Kind)
	}
	for i, c := range l.Of[:kids] {
		errs = append(errs, c.validate(fmt.Sprintf("%s.of[%d]", path, i), depth+1, nodes))
	}
	return errors.Join(errs...)
}
