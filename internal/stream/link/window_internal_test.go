package link

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// link is a connection as a window sees it: so many bytes a second, after a delay, behind what is
// in flight.
type link struct {
	perSecond int
	delay     time.Duration
}

const near = 100 * time.Microsecond

// settle fills the window from begin on and probes so often; demand is what its writers would have
// in flight.
func (l link) settle(w *window, s *Share, demand, probes int, now time.Time) time.Time {
	for range probes {
		for s.bytes+1000 <= demand && s.Room(1000) {
			s.Take(1000)
		}
		for w.used > max(w.limit, 1000) {
			s.Give(1000)
		}
		took := l.delay + time.Duration(w.used)*time.Second/time.Duration(l.perSecond)
		now = now.Add(max(took, probeEvery))
		w.probed(took, now)
	}
	return now
}

func TestAWindowIsWhatTheConnectionCarriesInAMoment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		link        link
		demand      int
		least, most int
	}{
		"slow":                     {link{4 << 20, near}, 16 << 20, leastWindow, leastWindow},
		"fast":                     {link{2 << 30, near}, 16 << 20, mostWindow, mostWindow},
		"between":                  {link{40 << 20, near}, 16 << 20, 400 << 10, 1500 << 10},
		"far, 40 ms":               {link{100 << 20, 40 * time.Millisecond}, 16 << 20, 1500 << 10, 4 << 20},
		"fast, with little to say": {link{2 << 30, near}, 100 << 10, leastWindow, leastWindow},
	} {
		w := newWindow()
		s := &Share{w: w, wake: func() {}}
		now := time.Now()
		w.probed(tc.link.delay, now) // before there is a load
		w.round(now)
		now = tc.link.settle(w, s, tc.demand, 200, now)
		if w.limit < tc.least || w.limit > tc.most {
			t.Errorf("%s: the window is %d KB, want %d to %d", name, w.limit>>10, tc.least>>10, tc.most>>10)
		}
		slow := link{1 << 20, tc.link.delay}
		slow.settle(w, s, tc.demand, 30, now)
		if w.limit != leastWindow {
			t.Errorf("%s: the window is %d KB once the link is slow", name, w.limit>>10)
		}
	}
}

// A quiet collection behind a flood over 4 MB/s waits at most 0.25 s, and 80 % of 20 MB/s are used
// over a path of 100 ms: no fixed window does both. What is in flight on such a path is no queue,
// as far as it fits into the path.
func TestAWindowHoldsBothFloors(t *testing.T) {
	t.Parallel()
	settled := func(perSecond int, delay time.Duration) *window {
		w := newWindow()
		s := &Share{w: w, wake: func() {}}
		now := time.Now()
		w.probed(delay, now) // before there is a load
		w.round(now)
		for range 400 {
			for s.Room(1000) {
				s.Take(1000)
			}
			for w.used > max(w.limit, 1000) {
				s.Give(1000)
			}
			path := perSecond * int(delay/time.Millisecond) / 1000
			took := delay + time.Duration(max(w.used-path, 0))*time.Second/time.Duration(perSecond)
			now = now.Add(max(took, probeEvery))
			w.probed(took, now)
		}
		return w
	}
	if w := settled(4e6, near); float64(w.limit)/4e6 > 0.25 {
		t.Errorf("a record waits for %d KB at 4 MB/s", w.limit>>10)
	}
	if w := settled(20e6, 100*time.Millisecond); float64(w.limit) < 0.8*20e6*0.1 {
		t.Errorf("%d KB are in flight on a path of 20 MB/s and 100 ms", w.limit>>10)
	}
}

func TestASingleLateProbeChangesNoWindow(t *testing.T) {
	t.Parallel()
	w := newWindow()
	s := &Share{w: w, wake: func() {}}
	now := link{2 << 30, near}.settle(w, s, mostWindow, 100, time.Now())
	for i := range 40 {
		took := time.Millisecond
		if i%roundProbes > 0 {
			took = 2 * queueing // three of four come late: the machine is busy
		}
		now = now.Add(time.Millisecond)
		w.probed(took, now)
	}
	if w.limit != mostWindow {
		t.Errorf("the window is %d KB", w.limit>>10)
	}
}

func TestCollectionsShareAWindow(t *testing.T) {
	t.Parallel()
	const size = 1000
	woken := map[*Share]int{}
	w := newWindow()
	join := func() *Share {
		s := &Share{w: w}
		s.wake = func() { woken[s]++ }
		return s
	}
	fill := func(s *Share) int {
		n := 0
		for ; s.Room(size); n++ {
			s.Take(size)
		}
		return n
	}
	all := leastWindow / size
	flood, stuck, quiet := join(), join(), join()
	if n := fill(stuck); n != all {
		t.Fatalf("one alone has %d records in flight, want %d", n, all)
	}
	if n := fill(flood); n < all/2-1 || n > all/2+1 {
		t.Errorf("the second has %d in flight beside one that is not acknowledged, want its half, %d", n, all/2)
	}
	for range 3 * all { // both are acknowledged in turns, and go on
		for _, s := range []*Share{flood, stuck} {
			if s.bytes > 0 {
				s.Give(size)
			}
			if s.Room(size) {
				s.Take(size)
			}
		}
	}
	if a, b := flood.bytes, stuck.bytes; max(a, b)-min(a, b) > 2*size || a+b > leastWindow+2*size {
		t.Errorf("%d and %d bytes in flight, want equal shares of %d", a, b, leastWindow)
	}
	if !quiet.Room(8 << 20) {
		t.Error("one with nothing in flight has to wait")
	}
	if flood.Room(size) || woken[flood] == 0 {
		t.Errorf("room in a full window, woken %d times before", woken[flood])
	}
	before := woken[flood]
	stuck.Leave() // the writer was closed
	if woken[flood] == before || !flood.Room(size) {
		t.Error("what one gave up is not another's")
	}
	flood.Leave()
	if w.used != 0 || w.active != 0 {
		t.Errorf("%d bytes of %d shares are in flight after all left", w.used, w.active)
	}
}

func TestRoomForOneRecordWakesOneOfThoseThatWait(t *testing.T) {
	t.Parallel()
	const size = leastWindow / 256
	w := newWindow()
	woken, shares := 0, make([]*Share, 200)
	for i := range shares {
		shares[i] = &Share{w: w, wake: func() { woken++ }}
		shares[i].Take(size)
	}
	for shares[0].Room(size) {
		shares[0].Take(size)
	}
	for _, s := range shares {
		if s.Room(2 * size) {
			t.Fatal("room in a full window")
		}
	}
	shares[0].Give(size)
	if woken != 0 {
		t.Errorf("%d were woken in vain", woken)
	}
	shares[0].Give(size)
	if woken != 1 {
		t.Errorf("%d were woken, and there is room for one", woken)
	}
	for _, s := range shares[100:] {
		s.Leave()
	}
	if woken < 50 {
		t.Errorf("%d were woken, and there is room for 50", woken)
	}
}

// A writer does not ask for room when nothing of it is in flight, and some never ask again.
func TestProbesEndOnceNothingIsInFlight(t *testing.T) {
	t.Parallel()
	w := newWindow()
	s := &Share{w: w, wake: func() {}}
	if !s.Room(leastWindow) || !s.Take(leastWindow) {
		t.Fatal("no probe for a full window")
	}
	if s.Room(leastWindow) || !w.again() {
		t.Fatal("room in a full window, or nothing to probe for")
	}
	s.Give(leastWindow)
	for range roundProbes {
		if !w.again() {
			t.Fatal("the connection is not probed at rest")
		}
		w.probed(near, time.Now())
	}
	if w.again() {
		t.Error("the idle connection is probed for ever")
	}
	if !s.Take(leastWindow) { // as its writer does now
		t.Error("no probe for a window that is full again")
	}
}

// A path that became longer is no queue.
func TestAWindowIsLearntAgainForALongerPath(t *testing.T) {
	t.Parallel()
	const perSecond = 100 << 20
	w := newWindow()
	s := &Share{w: w, wake: func() {}}
	now := link{perSecond, near}.settle(w, s, mostWindow, 200, time.Now())
	far := link{perSecond, 4 * queueing}
	now = far.settle(w, s, mostWindow, 200, now)
	if !w.again() {
		t.Fatal("nothing to probe for under load")
	}
	s.Leave()
	for w.again() {
		w.probed(far.delay, now)
	}
	if w.idle != far.delay {
		t.Fatalf("the idle connection is thought to take %v, want %v", w.idle, far.delay)
	}
	far.settle(w, s, mostWindow, 200, now)
	if w.limit < 1500<<10 {
		t.Errorf("the window of a fast and long path is %d KB", w.limit>>10)
	}
	idle := w.idle
	if !w.again() {
		t.Fatal("nothing to probe for under load")
	}
	s.Leave()
	for w.again() { // something passes by each time
		s.Take(1000)
		s.Give(1000)
		w.probed(2*far.delay, now)
	}
	if w.idle != idle {
		t.Errorf("probes that were not at rest made it %v of %v", w.idle, idle)
	}
}

// Also when nothing was in flight while the connection was away, so that no probe was.
func TestWhatWasLearntOfAConnectionIsForgottenWithIt(t *testing.T) {
	t.Parallel()
	c, err := Dial(t.Context(), Config{URL: embeddedtest.NATS(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.window.probed(near, time.Now())
	again := c.Events.Wait()
	if err := c.NATS.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	<-again
	c.window.mu.Lock()
	defer c.window.mu.Unlock()
	if c.window.idle != 0 {
		t.Errorf("the new connection is thought to take %v, as the one before", c.window.idle)
	}
}
