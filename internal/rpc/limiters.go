package rpc

import (
	"time"

	"golang.org/x/time/rate"
)

// Limiters limit each of many, such as hosts, to so much at once and so much a second after that.
// At most Most of those are remembered that have done something lately. They are not safe for
// concurrent use.
type Limiters[K comparable] struct {
	Burst, Rate, Most int

	of map[K]*rate.Limiter
}

// May reports whether one may do one more thing, without counting it.
func (l *Limiters[K]) May(key K, now time.Time) bool {
	one := l.of[key]
	return one == nil || one.TokensAt(now) >= 1
}

// Take counts a thing that one does, and reports whether it may.
func (l *Limiters[K]) Take(key K, now time.Time) bool { return l.limiter(key, now).AllowN(now, 1) }

// Count counts a thing that one has done, whether it might or not.
func (l *Limiters[K]) Count(key K, now time.Time) { l.limiter(key, now).ReserveN(now, 1) }

// Forget begins again with one, as if it had done nothing.
func (l *Limiters[K]) Forget(key K) { delete(l.of, key) }

// looked is how many are looked at to make room for another.
const looked = 64

// shrink forgets some of those that have been quiet for long, who count as new; where it meets none
// of them, another one.
func (l *Limiters[K]) shrink(now time.Time) {
	var last K
	n := 0
	for k, one := range l.of {
		if last = k; one.TokensAt(now) >= float64(l.Burst) {
			delete(l.of, k)
		}
		if n++; n == looked {
			break
		}
	}
	if len(l.of) >= l.Most {
		delete(l.of, last)
	}
}

func (l *Limiters[K]) limiter(key K, now time.Time) *rate.Limiter {
	one := l.of[key]
	if one != nil {
		return one
	}
	if len(l.of) >= l.Most {
		l.shrink(now)
	}
	if l.of == nil {
		l.of = map[K]*rate.Limiter{}
	}
	one = rate.NewLimiter(rate.Limit(l.Rate), l.Burst)
	l.of[key] = one
	return one
}
