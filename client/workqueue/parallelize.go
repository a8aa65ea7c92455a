package workqueue

import (
	"context"
	"sync"
	"sync/atomic"
)

// DoWorkPieceFunc does one piece of a [ParallelizeUntil].
type DoWorkPieceFunc func(piece int)

// Options changes a [ParallelizeUntil].
type Options func(*parallel)

type parallel struct{ chunk int }

// WithChunkSize hands pieces to workers so many at a time, in order; values
// below one mean one.
func WithChunkSize(n int) Options { return func(p *parallel) { p.chunk = max(n, 1) } }

// ParallelizeUntil does the pieces 0 to pieces-1 with a number of workers and
// returns when they have ended: every piece exactly once, and once ctx has
// ended no piece that had not begun.
func ParallelizeUntil(ctx context.Context, workers, pieces int, do DoWorkPieceFunc, options ...Options) {
	p := parallel{chunk: 1}
	for _, o := range options {
		o(&p)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(workers, (pieces+p.chunk-1)/p.chunk) {
		wg.Go(func() {
			for {
				end := int(next.Add(int64(p.chunk)))
				for i := end - p.chunk; i < min(end, pieces); i++ {
					if ctx.Err() != nil {
						return
					}
					do(i)
				}
				if end >= pieces {
					return
				}
			}
		})
	}
	wg.Wait()
}
