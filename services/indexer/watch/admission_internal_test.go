package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// asks waits in line and tells when it got its place, or why not.
func asks(t *testing.T, l *line, client string) (got <-chan func(), refused <-chan error) {
	t.Helper()
	places, errs := make(chan func(), 1), make(chan error, 1)
	go func() {
		done, err := l.enter(t.Context(), client, nil, time.Hour)
		if err != nil {
			errs <- err
			return
		}
		places <- done
	}()
	synctest.Wait()
	return places, errs
}

func TestPlacesGoToTheClientThatHasFewest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &line{places: 2, most: 2 * linePerPlace, keepFor: time.Minute}
		first, _ := asks(t, l, "many")
		second, _ := asks(t, l, "many")
		third, _ := asks(t, l, "many")
		other, _ := asks(t, l, "other")
		(<-first)()
		synctest.Wait()
		select {
		case done := <-other:
			done()
		default:
			t.Error("the other client waits behind those of one that has a place")
		}
		(<-third)()
		(<-second)()
		if taken, waiting := l.len(); taken != 0 || waiting != 0 || len(l.held) != 0 {
			t.Errorf("%d places are taken, %d wait, held %v", taken, waiting, l.held)
		}
	})
}

func TestAFullLineGivesWayToWhoWaitsLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &line{places: 1, most: linePerPlace, keepFor: time.Minute}
		place, _ := asks(t, l, "many")
		var refusals []<-chan error
		for range linePerPlace {
			_, refused := asks(t, l, "many")
			refusals = append(refusals, refused)
		}
		_, refused := asks(t, l, "many")
		if err := <-refused; !errors.Is(err, fault.ErrTooManyWatchers) {
			t.Errorf("one more of the same client: %v", err)
		}
		other, _ := asks(t, l, "other")
		if err := <-refusals[linePerPlace-1]; !errors.Is(err, fault.ErrTooManyWatchers) {
			t.Errorf("the last of the client that waits most: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // who leaves while in line is not counted
		if _, err := l.enter(ctx, "third", nil, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was cancelled: %v", err)
		}
		(<-place)()
		synctest.Wait()
		select {
		case done := <-other:
			done()
		default:
			t.Error("the other client got no place")
		}
	})
}

// More small states at a time would not be sent sooner, and every other call
// would wait behind all of them.
func TestAHerdOfSmallStatesIsSentAFewAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newWatched(t)
		mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
		stopping := make(chan struct{})
		_, s := newTestWatches(t, testConfig{stopping: stopping})
		if s.lines.of(smallState) == s.lines.of(smallState+1) {
			t.Fatal("small states wait behind large ones")
		}
		places := s.lines.small.places
		herd := 10 * places
		admitted, left := make(chan func(), herd), make(chan error, herd)
		for range herd {
			go func() {
				w := &watcher{s: s, c: c, hub: hubOf(c)}
				if _, err := hubOf(c).join(w, "all", "full"); err != nil {
					left <- err
					return
				}
				defer hubOf(c).leave(w)
				done, err := w.admit(t.Context())
				if err != nil {
					left <- err
					return
				}
				admitted <- done
			}()
		}
		synctest.Wait()
		if len(admitted) != places || len(left) != 0 {
			t.Errorf("%d of %d are sent at a time, want %d; %d refused", len(admitted), herd, places, len(left))
		}
		for range 2 * places { // whose readers are done
			(<-admitted)()
			synctest.Wait()
		}
		if len(admitted) != places {
			t.Errorf("%d are sent at a time behind the first, want %d", len(admitted), places)
		}
		time.Sleep(smallFor) // readers that do not read hold up the others only so long
		synctest.Wait()
		if len(admitted) != 2*places {
			t.Errorf("%d were let in, want %d", len(admitted), 2*places)
		}
		close(stopping)
		synctest.Wait()
		if _, waiting := s.lines.len(); waiting != 0 || len(left) != herd-4*places {
			t.Errorf("%d still wait and %d left when the server stopped", waiting, len(left))
		}
		for len(admitted) > 0 {
			(<-admitted)()
		}
		if taken, _ := s.lines.len(); taken != 0 {
			t.Errorf("%d places are still taken", taken)
		}
	})
}
