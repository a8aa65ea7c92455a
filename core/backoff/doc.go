// Package backoff holds the rate limiters and back-off tables of client-go as
// pure values: time is passed in, nothing sleeps, nothing locks.
//
// A [Limiter] is a declarative tree (exponential, bucket, fast/slow, max-of,
// max-wait) that every queue engine interprets in the same way, so a limiter
// can be configured, stored, changed while running and evaluated inside the
// store. Because each limiter of a tree sees every call for an item, one
// failure count per item and one number per bucket is all its state.
//
// [Items] keeps that state in memory and reproduces client-go's
// TypedRateLimiter. [Growth] is client-go's flowcontrol.Backoff as functions of
// one [Entry], and [Throttle] its token bucket; the owner of the entries sweeps
// those that expired.
//
// None of the types is safe for concurrent use.
package backoff
