package reflector

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A change is published at once after a pause, and those that follow closely make one batch. A
// stream that fills its batches waits for nothing, and without a time to gather nothing does.
func TestChangesThatFollowCloselyAreGathered(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		gather  time.Duration
		batch   int             // what a drain publishes
		changes []time.Duration // when they come
		want    []time.Duration // when they are published
	}{
		"gathered":       {20 * ms, 1, []time.Duration{0, 5 * ms, 10 * ms, 19 * ms}, []time.Duration{0, 20 * ms}},
		"after a pause":  {20 * ms, 1, []time.Duration{0, 30 * ms}, []time.Duration{0, 30 * ms}},
		"one after each": {20 * ms, 1, []time.Duration{0, 5 * ms, 25 * ms}, []time.Duration{0, 20 * ms, 40 * ms}},
		"full batches":   {20 * ms, popRecords, []time.Duration{0, 5 * ms}, []time.Duration{0, 5 * ms}},
		"nothing said":   {20 * ms, 0, []time.Duration{0, 5 * ms}, []time.Duration{0, 5 * ms}},
		"no time":        {0, 1, []time.Duration{0, 5 * ms}, []time.Duration{0, 5 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				wake, began := make(chan struct{}, 1), time.Now()
				var got []time.Duration
				ended := make(chan error, 1)
				go func() {
					ended <- pace{wake: wake, gather: tc.gather, live: time.Hour, drain: func(context.Context) (int, error) {
						got = append(got, time.Since(began))
						return tc.batch, nil
					}}.run(ctx)
				}()
				for _, at := range tc.changes {
					time.Sleep(at - time.Since(began))
					select {
					case wake <- struct{}{}:
					default:
					}
					synctest.Wait()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if !slices.Equal(got, tc.want) {
					t.Errorf("published at %v, want %v", got, tc.want)
				}
				cancel()
				<-ended
			})
		})
	}
}

// What is gathered holds back no liveness record: its watermark stands before what waits.
func TestALivenessRecordDoesNotWaitForWhatIsGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wake, beats := make(chan struct{}, 1), 0
		ended := make(chan error, 1)
		go func() {
			ended <- pace{
				wake: wake, gather: time.Second, live: 100 * time.Millisecond,
				drain: func(context.Context) (int, error) { return 1, nil },
				beat:  func(context.Context) error { beats++; return nil },
			}.run(ctx)
		}()
		wake <- struct{}{}
		time.Sleep(550 * time.Millisecond)
		synctest.Wait()
		if beats != 5 {
			t.Errorf("%d liveness records within half a second of gathering, want 5", beats)
		}
		cancel()
		<-ended
	})
}
