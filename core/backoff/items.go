package backoff

import "time"

// Items keeps a limiter's state per item in memory, as client-go's
// TypedRateLimiter does. The zero value limits nothing.
type Items[T comparable] struct {
	limiter  Limiter
	failures map[T]int
	tats     []float64
}

// NewItems returns an empty state for a limiter.
func NewItems[T comparable](l Limiter) *Items[T] {
	return &Items[T]{limiter: l, failures: map[T]int{}, tats: make([]float64, l.Buckets())}
}

// When charges one call for the item and returns how long it has to wait.
func (i *Items[T]) When(item T, now time.Time) time.Duration {
	f := i.failures[item]
	if i.counts() {
		i.failures[item] = f + 1
	}
	return i.limiter.When(f, now.UnixMicro(), i.tats)
}

// Forget starts the item's count again. A bucket's tokens stay spent.
func (i *Items[T]) Forget(item T) { delete(i.failures, item) }

// NumRequeues is how many times When was called since the last Forget. A tree
// of buckets alone counts nothing.
func (i *Items[T]) NumRequeues(item T) int { return i.failures[item] }

func (i *Items[T]) counts() bool { return i.failures != nil && i.limiter.Counts() }

// Counts says whether the tree holds a limiter that counts failures, so that
// NumRequeues can be other than zero.
func (l Limiter) Counts() bool {
	if l.Kind == Exponential || l.Kind == FastSlow {
		return true
	}
	for _, c := range l.Of {
		if c.Counts() {
			return true
		}
	}
	return false
}
