package indexer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// asks waits in line and tells when it got its place, or why not.
func (l *line) asks(t *testing.T, client string) (got <-chan func(), refused <-chan error) {
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
		l := &line{places: 2}
		first, _ := l.asks(t, "many")
		second, _ := l.asks(t, "many")
		third, _ := l.asks(t, "many")
		other, _ := l.asks(t, "other")
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
		l := &line{places: 1}
		place, _ := l.asks(t, "many")
		var refusals []<-chan error
		for range linePerPlace {
			_, refused := l.asks(t, "many")
			refusals = append(refusals, refused)
		}
		_, refused := l.asks(t, "many")
		if err := <-refused; !errors.Is(err, errTooManyWatchers) {
			t.Errorf("one more of the same client: %v", err)
		}
		other, _ := l.asks(t, "other")
		if err := <-refusals[linePerPlace-1]; !errors.Is(err, errTooManyWatchers) {
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
