package clientgo

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// ErrRateLimiter: the settings of a rate limiter cannot be read, so that the queue service cannot
// keep it. The message says what to use instead.
var ErrRateLimiter = errors.New("clientgo: rate limiter cannot be taken over")

// combined is a limiter of limiters that still knows them.
type combined[T comparable] struct {
	workqueue.TypedRateLimiter[T]
	of      []workqueue.TypedRateLimiter[T]
	combine func([]client.RateLimiter) client.RateLimiter
}

// MaxOf is workqueue.NewTypedMaxOfRateLimiter whose limiters a queue of this package can take over.
func MaxOf[T comparable](limiters ...workqueue.TypedRateLimiter[T]) workqueue.TypedRateLimiter[T] {
	return &combined[T]{workqueue.NewTypedMaxOfRateLimiter(limiters...), limiters, func(of []client.RateLimiter) client.RateLimiter { return client.MaxOf(of...) }}
}

// MaxWait is workqueue.NewTypedWithMaxWaitRateLimiter whose limiter a queue of this package can
// take over.
func MaxWait[T comparable](limiter workqueue.TypedRateLimiter[T], longest time.Duration) workqueue.TypedRateLimiter[T] {
	return &combined[T]{
		workqueue.NewTypedWithMaxWaitRateLimiter(limiter, longest),
		[]workqueue.TypedRateLimiter[T]{limiter},
		func(of []client.RateLimiter) client.RateLimiter { return client.MaxWait(of[0], longest) },
	}
}

// WithLimiter is the configuration of a queue that takes over a limiter, as [NewQueue] does; nil
// leaves it as it is. Errors wrap [ErrRateLimiter], or say that Settings has a limiter too.
func WithLimiter[T comparable](cfg keys.Config, limiter workqueue.TypedRateLimiter[T]) (keys.Config, error) {
	if limiter == nil {
		return cfg, nil
	}
	s, err := settings(limiter)
	if err != nil {
		return cfg, err
	}
	var with client.QueueConfig
	if cfg.Settings != nil {
		with = *cfg.Settings
	}
	if with.RateLimiter != (client.RateLimiter{}) {
		return cfg, errors.New("clientgo: both a limiter and Settings.RateLimiter are set")
	}
	with.RateLimiter = s
	cfg.Settings = &with
	return cfg, nil
}

// settings are those of a limiter for a queue. Errors wrap ErrRateLimiter.
func settings[T comparable](l workqueue.TypedRateLimiter[T]) (none client.RateLimiter, err error) {
	switch l := l.(type) {
	case *combined[T]:
		of := make([]client.RateLimiter, len(l.of))
		for i := range l.of {
			if of[i], err = settings(l.of[i]); err != nil {
				return none, err
			}
		}
		return l.combine(of), nil
	case *workqueue.TypedBucketRateLimiter[T]:
		if l.Limiter == nil || !(l.Limit() > 0) || l.Limit() >= rate.Inf {
			return none, fmt.Errorf("%w: a %T without a finite limit", ErrRateLimiter, l)
		}
		return client.Bucket(float64(l.Limit()), int64(l.Burst())), nil
	case *workqueue.TypedItemExponentialFailureRateLimiter[T]:
		return exponential(l), nil
	case *workqueue.TypedItemFastSlowRateLimiter[T]:
		return fastSlow(l)
	case *workqueue.TypedMaxOfRateLimiter[T]:
		return none, fmt.Errorf("%w: %T hides its limiters: use clientgo.MaxOf, or nil in place of the default controller limiter", ErrRateLimiter, l)
	case *workqueue.TypedWithMaxWaitRateLimiter[T]:
		return none, fmt.Errorf("%w: %T hides its limiter: use clientgo.MaxWait", ErrRateLimiter, l)
	default:
		return none, fmt.Errorf("%w: %T runs in this process: describe it by Settings.RateLimiter", ErrRateLimiter, l)
	}
}

// exponential reads a limiter by what it answers: the delay doubles from the base until it stays at
// the longest, within 64 steps.
func exponential[T comparable](l workqueue.TypedRateLimiter[T]) client.RateLimiter {
	var probe T
	l.Forget(probe)
	defer l.Forget(probe)
	base := l.When(probe)
	longest := base
	for range 64 {
		next := l.When(probe)
		if next == longest {
			break
		}
		longest = next
	}
	return client.Exponential(base, longest)
}

// mostFast is how many fast attempts are looked for.
const mostFast = 1 << 16

// fastSlow reads a limiter by what it answers: the delay changes once.
func fastSlow[T comparable](l workqueue.TypedRateLimiter[T]) (client.RateLimiter, error) {
	var probe T
	l.Forget(probe)
	defer l.Forget(probe)
	fast := l.When(probe)
	for n := int64(1); n <= mostFast; n++ {
		if slow := l.When(probe); slow != fast {
			return client.FastSlow(fast, slow, n), nil
		}
	}
	return client.RateLimiter{}, fmt.Errorf("%w: %T waits %v for each of %d attempts: describe it by Settings.RateLimiter with client.FastSlow",
		ErrRateLimiter, l, fast, mostFast)
}
