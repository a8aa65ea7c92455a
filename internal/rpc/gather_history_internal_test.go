package rpc

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever a transport, a closer and the other end do at the same time: what
// arrives is a beginning of what was written, it is all of it when the other end
// reads in time, no write outlasts the closing, and nobody is left behind.
func TestWritesAndClosesInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { history(t, seed) })
	}
}

func history(t *testing.T, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a history
	here, there := net.Pipe()
	g := newGatherer(here, func(pending int) bool { return seed%3 > 0 && pending < LentIn })
	pieces := randomPieces(random, random.IntN(120))
	end := -1 // the other end goes after so many reads, or reads no more
	if seed%4 == 0 {
		end = random.IntN(200)
	}
	stays := make(chan struct{})
	if seed%8 == 0 {
		defer close(stays)
	} else {
		close(stays)
	}
	slow := time.Duration(random.IntN(3)) * time.Millisecond
	closeAt := time.Duration(random.IntN(400)) * time.Millisecond
	if seed%2 == 0 {
		closeAt = time.Hour // when all is written
	}
	pause := random.IntN(20)

	var group sync.WaitGroup
	var got []byte
	group.Go(func() {
		defer func() {
			go func() { <-stays; _ = there.Close() }()
		}()
		buf := make([]byte, 30<<10)
		for reads := 0; reads != end; reads++ {
			n, err := there.Read(buf)
			got = append(got, buf[:n]...)
			if err != nil {
				break
			}
			time.Sleep(slow)
		}
	})
	written, all := 0, true
	sent := slices.Concat(pieces...)
	done := make(chan struct{})
	group.Go(func() {
		defer close(done)
		pauses := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // a history
		for _, p := range pieces {
			n, err := g.Write(p)
			if err != nil {
				all = false
				return
			}
			written += n
			if pause > 0 && pauses.IntN(pause) == 0 {
				time.Sleep(time.Duration(pauses.IntN(5)) * time.Millisecond)
			}
		}
	})
	select {
	case <-done:
	case <-time.After(closeAt):
	}
	began := time.Now()
	first, second := g.Close(), g.Close()
	if first != nil || !errors.Is(second, net.ErrClosed) || time.Since(began) > 0 {
		t.Errorf("seed %d: Close = %v, again %v, after %v", seed, first, second, time.Since(began))
	}
	if _, err := g.Write([]byte("anything")); err == nil {
		t.Errorf("seed %d: a write after closing was taken", seed)
	}
	group.Wait()
	time.Sleep(lastWords - time.Since(began))
	synctest.Wait()
	if _, err := here.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("seed %d: the connection is open after %v: %v", seed, time.Since(began), err)
	}
	if len(got) > len(sent) || !bytes.Equal(got, sent[:len(got)]) {
		t.Fatalf("seed %d: the %d bytes that arrived are not the beginning of what was written", seed, len(got))
	}
	if end < 0 && len(got) < written {
		t.Errorf("seed %d: %d bytes arrived of %d that were taken", seed, len(got), written)
	}
	if end < 0 && closeAt == time.Hour && (!all || len(got) != len(sent)) {
		t.Errorf("seed %d: %d bytes arrived, want %d", seed, len(got), len(sent))
	}
}
