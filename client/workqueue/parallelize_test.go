package workqueue_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/deltaplane/deltaplane/client/workqueue"
)

func TestEveryPieceIsDoneExactlyOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ pieces, workers, chunk int }{
		{1000, 10, 0}, {1000, 10, 1}, {1000, 10, 10}, {1000, 10, 100}, {999, 10, 13}, {3, 10, 1}, {3, 2, 10}, {0, 4, 1}, {5, 0, 1},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			t.Parallel()
			done := make([]atomic.Int32, tc.pieces)
			var options []workqueue.Options
			if tc.chunk != 0 {
				options = append(options, workqueue.WithChunkSize(tc.chunk))
			}
			workqueue.ParallelizeUntil(t.Context(), tc.workers, tc.pieces, func(i int) { done[i].Add(1) }, options...)
			for i := range done {
				if n := int(done[i].Load()); n != min(tc.workers, 1) {
					t.Fatalf("piece %d was done %d times", i, n)
				}
			}
		})
	}
}

func TestACancelStopsBetweenPieces(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var began atomic.Int32
	workqueue.ParallelizeUntil(ctx, 4, 10_000, func(i int) {
		began.Add(1)
		cancel()
	}, workqueue.WithChunkSize(100))
	if n := began.Load(); n < 1 || n > 4 {
		t.Errorf("%d pieces began, want at most one per worker", n)
	}
}
