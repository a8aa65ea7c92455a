package link

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// leastWindow is what may always be in flight: probes of a busy machine are late although nothing
	// queues, and a log must not stand still for that. At 4 MB/s it takes 64 ms.
	leastWindow = 256 << 10
	// mostWindow keeps the server's ingest queue (128 MB per stream) far away.
	mostWindow = 16 << 20
	// queueing is how long a probe may wait behind appends, beyond what it takes on the idle
	// connection.
	queueing = 30 * time.Millisecond
	// A window is judged by the quickest of so many probes, or of those of roundTime: what queues
	// delays all of them, a busy machine some.
	roundProbes = 4
	roundTime   = 100 * time.Millisecond
	// probeEvery is how far apart probes are at least.
	probeEvery = 5 * time.Millisecond
	// unanswered is how many write timeouts a probe may take before the server counts as stopped. The
	// window is too small to fill the kernel's buffers, by which a write would find that out.
	unanswered = 4
	// staleWindow is after how long without a round a window is learnt again.
	staleWindow = time.Second
)

// window bounds the bytes of all appends in flight on one connection. The connection is a queue:
// what one collection has put into it, every other one waits for, and so do requests. The window is
// as large as the connection needs to be busy: it grows while probes come back about as fast as
// without load, and shrinks when they queue. A log that is merely slow at the server delays no
// probe.
//
// Collections share it: one may fill what nobody else uses, and each that has something in flight
// may have its equal share of the whole, so that none waits for what others have in flight. One
// record of each is always let in, whatever its size.
type window struct {
	mu      sync.Mutex
	limit   int
	used    int
	active  int            // shares with something in flight
	waiting map[*Share]int // shares that found no room since they last had some, and have something in flight; for how many bytes
	acked   uint64         // how often something in flight was acknowledged

	probing bool
	idle    time.Duration // the quickest probe since the connection was last at rest; 0 before the first
	began   time.Time     // of the round
	probes  int           // in the round
	lowest  time.Duration // of the round
	wanted  bool          // somebody found no room in the round

	rests    int           // probes that are still to be made at rest
	resting  bool          // one of them is under way
	restedAt uint64        // acked, as it began
	calm     time.Duration // the quickest of them
}

func newWindow() *window { return &window{limit: leastWindow, waiting: map[*Share]int{}} }

// Share is one writer's part of a window.
type Share struct {
	w     *window
	bytes int // guarded by w.mu
	wake  func()
}

// Share is a part of what the connection carries at once. wake is called when others have made room
// for it, and must not block; what its own acknowledgements make, the writer knows.
func (c *Conn) Share(wake func()) *Share { return &Share{w: c.window, wake: wake} }

// Room reports whether size bytes more may be sent. When it says no, wake is called when that may
// have changed.
func (s *Share) Room(size int) bool {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used+size <= w.limit || s.entitled(size) {
		delete(w.waiting, s)
		return true
	}
	w.waiting[s] = size
	w.wanted = true
	return false
}

// entitled reports whether size bytes more are within the share's equal part, or the first. The
// caller holds mu.
func (s *Share) entitled(size int) bool {
	return s.bytes == 0 || s.bytes+size <= s.w.limit/max(s.w.active, 1)
}

// Take puts size bytes in flight. It reports whether probing should begin.
func (s *Share) Take(size int) bool {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.bytes == 0 && size > 0 {
		w.active++
	}
	s.bytes += size
	w.used += size
	if w.probing || w.used <= leastWindow/2 {
		return false
	}
	w.probing = true
	now := time.Now()
	if now.Sub(w.began) > staleWindow {
		w.limit = leastWindow
	}
	w.round(now)
	return true
}

// Give takes size bytes, which were acknowledged, out of flight.
func (s *Share) Give(size int) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.acked++
	s.w.free(s, size)
}

// Leave gives up all that the share has in flight.
func (s *Share) Leave() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	delete(s.w.waiting, s)
	s.w.free(s, s.bytes)
}

// free is for give and leave. The caller holds mu.
func (w *window) free(s *Share, size int) {
	if size == 0 {
		return
	}
	s.bytes -= size
	w.used -= size
	if s.bytes == 0 {
		w.active--
		delete(w.waiting, s) // its writer is let in, and need not ask again
	}
	w.wake()
}

// wake tells as many of those that wait as there is room for: hundreds would be told of each record
// that was acknowledged. Who makes no use of it keeps nobody waiting for ever, as all have
// something in flight and are told by its acknowledgement. The caller holds mu.
func (w *window) wake() {
	used := w.used
	for s, size := range w.waiting {
		switch {
		case used+size <= w.limit:
			used += size
			s.wake()
		case s.entitled(size):
			s.wake()
		}
	}
}

// round begins a round. The caller holds mu.
func (w *window) round(now time.Time) { w.began, w.probes, w.lowest, w.wanted = now, 0, 0, false }

// probed takes in how long a probe was on its way.
func (w *window) probed(took time.Duration, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle == 0 || took < w.idle {
		w.idle = took
	}
	if w.resting {
		w.rest(took)
		return
	}
	if w.probes == 0 || took < w.lowest {
		w.lowest = took
	}
	if w.probes++; w.probes < roundProbes && now.Sub(w.began) < roundTime {
		return
	}
	switch queued := w.lowest - w.idle; {
	case queued > queueing: // what was in flight took lowest; less of it takes less
		fits := float64(min(w.limit, w.used)) * float64(w.idle+queueing) / float64(w.lowest)
		w.limit = max(int(fits), leastWindow)
	case queued <= queueing/2 && w.wanted:
		w.limit = min(2*w.limit, mostWindow)
		w.wake()
	}
	w.round(now)
}

// rest takes in how long a probe at rest was on its way. A round of them says what the idle
// connection takes now: its path may have become longer, and what is never undercut would pass for
// a queue. The caller holds mu.
func (w *window) rest(took time.Duration) {
	w.resting = false
	if w.used > 0 || w.acked != w.restedAt {
		w.rests = 0 // it was no rest
		return
	}
	if w.calm == 0 || took < w.calm {
		w.calm = took
	}
	if w.rests == 0 {
		w.idle = w.calm
	}
}

// again reports whether there is still something to probe for. When not, take says when there is.
func (w *window) again() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probing = w.used > leastWindow/2 || len(w.waiting) > 0
	switch {
	case w.probing:
		w.rests, w.calm = roundProbes, 0
	case w.used == 0 && w.rests > 0:
		w.rests--
		w.probing, w.resting, w.restedAt = true, true, w.acked
	}
	return w.probing
}

// forget is for a new connection: what was learnt of the old one may be wrong for it.
func (w *window) forget(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle, w.limit = 0, leastWindow
	w.rests, w.resting = 0, false
	w.round(now)
}

// acks is how often something in flight was acknowledged.
func (w *window) acks() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked
}

// Probe measures how long the connection's queue is, while appends fill it and once when they have
// ended, by pings: the server answers them in their turn among what the connection carries, without
// looking at any log. A server that took everything and answers nothing, or takes nothing, is left.
func (c *Conn) Probe(ctx context.Context) {
	for late := false; late || c.window.again(); {
		began, acked := time.Now(), c.window.acks()
		taken, _ := c.dialer.taken()
		waiting, cancel := context.WithTimeout(ctx, unanswered*c.Config.WriteTimeout)
		err := c.NATS.FlushWithContext(waiting)
		cancel()
		now := time.Now()
		late = errors.Is(err, context.DeadlineExceeded)
		switch {
		case err == nil:
			c.window.probed(now.Sub(began), now)
		case late:
			c.window.probed(now.Sub(began), now)
			after, waits := c.dialer.taken()
			if acked == c.window.acks() && (waits == 0 || after == taken) && after > 0 && c.NATS.IsConnected() {
				late = false
				c.Config.Log.Warn("the log's server answers nothing: the connection is made again", slog.Duration("after", now.Sub(began)))
				_ = c.NATS.ForceReconnect() // it fails when the connection was closed meanwhile
			}
		case c.NATS.IsClosed():
			return
		}
		<-time.After(probeEvery - now.Sub(began))
	}
}
