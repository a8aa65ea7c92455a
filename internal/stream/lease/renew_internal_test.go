package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// shelf is a bucket whose answers are as late as a test says, or are lost. What is written is there
// once the request has arrived.
type shelf struct {
	mu    sync.Mutex
	entry kv.Entry
	// way is how long a request takes to the bucket, and its answer back; lost is that the answer
	// never comes.
	way     func(op string) (there, back time.Duration, lost bool)
	packets sync.WaitGroup
}

func (s *shelf) travel(ctx context.Context, op string, arrive func() error) error {
	s.mu.Lock()
	there, back, lost := s.way(op)
	s.mu.Unlock()
	arrived := make(chan error, 1)
	s.packets.Go(func() { // also when nobody waits any more
		time.Sleep(there)
		s.mu.Lock()
		err := arrive()
		s.mu.Unlock()
		time.Sleep(back)
		if !lost {
			arrived <- err
		}
	})
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second) // as the client does
		defer cancel()
	}
	select {
	case err := <-arrived:
		return err
	case <-ctx.Done():
		return link.Named(ctx.Err())
	}
}

func (s *shelf) Get(ctx context.Context, _ string) (kv.Entry, error) {
	read := make(chan kv.Entry, 1)
	err := s.travel(ctx, "get", func() error {
		if s.entry.Revision == 0 {
			return kv.ErrNoKey
		}
		read <- s.entry
		return nil
	})
	if err != nil {
		return kv.Entry{}, err
	}
	return <-read, nil
}

func (s *shelf) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	rev := make(chan uint64, 1)
	err := s.travel(ctx, "update", func() error {
		if s.entry.Revision != revision {
			return kv.ErrConflict
		}
		s.entry = kv.Entry{Key: key, Value: value, Revision: revision + 1}
		rev <- s.entry.Revision
		return nil
	})
	if err != nil {
		return 0, err
	}
	return <-rev, nil
}

// at once is how a server at rest answers.
func atOnce(string) (there, back time.Duration, lost bool) {
	return time.Millisecond, time.Millisecond, false
}

// free releases a lease by a server at rest.
func (s *shelf) free(t *testing.T, l *Lease) {
	t.Helper()
	s.mu.Lock()
	s.way = atOnce
	s.mu.Unlock()
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release() = %v", err)
	}
}

const scriptTTL = 3 * time.Second

// contender waits for the lease of a shelf, as [Elections.Lease] does.
func contender(s *shelf, holder string, connected func() bool) *contest {
	return &contest{
		presence: newPresence(&link.Conn{Config: link.Config{}.WithDefaults(), Events: link.NewSignal()}),
		cfg:      Config{Name: "dev/pods.v1", Holder: holder, TTL: scriptTTL}.withDefaults(),
		notice:   make(chan struct{}, 1), bucket: s, connected: connected,
	}
}

// win waits until the lease is granted, or returns nil when ctx ends.
func (k *contest) win(ctx context.Context) *Lease {
	for ctx.Err() == nil {
		if l, err := k.try(ctx); err == nil && l != nil {
			return l
		}
		_ = k.wait(ctx)
	}
	return nil
}

func (l *Lease) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

func TestATermGoesOnWhateverBecomesOfTheAnswersToItsRenewals(t *testing.T) {
	t.Parallel()
	calm := func(_ int, op string) (time.Duration, time.Duration, bool) { return atOnce(op) }
	dice := rand.New(rand.NewPCG(1, 2)) // of one row
	for _, row := range []struct {
		name string
		way  func(n int, op string) (there, back time.Duration, lost bool)
		// held says that the lease must not even be in doubt.
		held bool
	}{
		{"at once", calm, true},
		{"each third answer is lost", func(n int, _ string) (time.Duration, time.Duration, bool) {
			return time.Millisecond, time.Millisecond, n%3 == 0
		}, false},
		{"one answer in five is lost, by chance", func(int, string) (time.Duration, time.Duration, bool) {
			return time.Millisecond, time.Millisecond, dice.IntN(5) == 0
		}, false},
		{"answers to two renewals one after the other are lost", func(n int, op string) (time.Duration, time.Duration, bool) {
			return time.Millisecond, time.Millisecond, op == "update" && n < 3
		}, false},
		{"each takes most of the TTL, one way", func(int, string) (time.Duration, time.Duration, bool) {
			return scriptTTL / 2, time.Millisecond, false
		}, false},
		{"each answer is later than the TTL, and then no more", func(n int, op string) (time.Duration, time.Duration, bool) {
			if n < 10 {
				return time.Millisecond, scriptTTL * 3 / 2, false
			}
			return calm(n, op)
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &shelf{way: atOnce}
				defer s.packets.Wait()
				l := contender(s, "one", func() bool { return true }).win(t.Context())
				n := 0
				s.mu.Lock()
				s.way = func(op string) (time.Duration, time.Duration, bool) {
					n++
					return row.way(n, op)
				}
				s.mu.Unlock()
				doubt := 0
				for range 1200 {
					time.Sleep(100 * time.Millisecond)
					if !l.valid() {
						doubt++
					}
				}
				if l.isLost() {
					t.Fatal("the lease was lost, though nobody else wanted it")
				}
				if row.held && doubt > 0 {
					t.Errorf("in doubt for %d tenths of a second", doubt)
				}
				if err := l.Hold(t.Context()); err != nil {
					t.Errorf("Hold() = %v", err)
				}
				s.free(t, l)
				time.Sleep(time.Minute) // what is on its way arrives
				if claim, _ := l.holds(s.entry); claim.Holder != "" {
					t.Errorf("the claim of %q is left after the release", claim.Holder)
				}
			})
		})
	}
}

// TestValidityCountsFromWhenARenewalWasSent: an answer that comes late shows what was true when the
// question was asked.
func TestValidityCountsFromWhenARenewalWasSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{way: atOnce}
		defer s.packets.Wait()
		l := contender(s, "one", func() bool { return true }).win(t.Context())
		defer s.free(t, l)
		sent := map[uint64]time.Time{}
		s.mu.Lock()
		s.way = func(op string) (time.Duration, time.Duration, bool) {
			if op == "update" {
				sent[uint64(len(sent))+1] = time.Now()
			}
			return time.Millisecond, 2 * time.Second, len(sent)%3 == 0
		}
		s.mu.Unlock()
		for range 600 {
			time.Sleep(50 * time.Millisecond)
			s.mu.Lock()
			claim, ours := l.holds(s.entry)
			stored := sent[claim.Beat]
			s.mu.Unlock()
			if until := *l.until.Load(); ours && claim.Beat > 0 && until.After(stored.Add(scriptTTL)) {
				t.Fatalf("valid until %v after the renewal in the bucket was sent, the TTL is %v", until.Sub(stored), scriptTTL)
			}
		}
		if l.isLost() {
			t.Error("the lease was lost, though nobody else wanted it")
		}
	})
}

func TestALeaseInDoubtHoldsWhatIsToBeWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{way: atOnce}
		defer s.packets.Wait()
		l := contender(s, "one", func() bool { return true }).win(t.Context())
		defer s.free(t, l)
		back := time.Now().Add(2 * scriptTTL)
		s.mu.Lock()
		s.way = func(string) (time.Duration, time.Duration, bool) {
			return max(time.Until(back), time.Millisecond), time.Millisecond, false // the server stands still until then
		}
		s.mu.Unlock()
		time.Sleep(scriptTTL + time.Second)
		if l.isLost() || l.valid() {
			t.Fatalf("lost %v, valid %v; want neither while the server may only be slow", l.isLost(), l.valid())
		}
		if err := l.Hold(t.Context()); err != nil {
			t.Fatalf("Hold() = %v", err)
		}
		if now := time.Now(); now.Before(back) {
			t.Errorf("held %v before the server answered", back.Sub(now))
		}
	})
}

// suspended returns t as a machine sees it that was suspended for d since t was noted: its
// monotonic clock stood still, and the wall clock went on.
func suspended(tb testing.TB, t time.Time, d time.Duration) time.Time {
	tb.Helper()
	was := t
	t = t.Add(-d)
	(*struct {
		wall      uint64
		monotonic int64
		loc       *time.Location
	})(unsafe.Pointer(&t)).monotonic += int64(d)
	if t.Sub(was) != 0 || t.Round(0).Sub(was.Round(0)) != -d {
		tb.Fatalf("a time is made otherwise in this version of Go: %v of %v", t, was)
	}
	return t
}

func TestAMachineThatWasSuspendedHoldsALeaseOnlyOnceItIsRenewed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		slept time.Duration
		taken bool // by another meanwhile
		want  error
	}{
		{"and nobody wanted it", time.Hour, false, nil},
		{"and it was taken", time.Hour, true, link.ErrDeposed},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // not in a bubble, which has one clock
			s := &shelf{way: atOnce}
			defer s.packets.Wait()
			l := contender(s, "one", func() bool { return true }).win(t.Context())
			defer s.free(t, l)
			before := *l.until.Load()
			if row.taken {
				s.mu.Lock()
				s.entry.Revision++
				s.entry.Value = []byte(`{"holder":"two","term":99}`)
				s.mu.Unlock()
			}
			until := suspended(t, before, row.slept)
			l.until.Store(&until)
			if err := l.Hold(t.Context()); !errors.Is(err, row.want) {
				t.Errorf("Hold() = %v, want %v", err, row.want)
			}
			if now := *l.until.Load(); row.want == nil && now.Equal(until) {
				t.Error("held before it was renewed")
			}
		})
	}
}

func TestALeaseIsLostForCertain(t *testing.T) {
	t.Parallel()
	never := func(string) (time.Duration, time.Duration, bool) { return time.Millisecond, 0, true }
	for _, row := range []struct {
		name      string
		harm      func(*shelf)
		connected bool
		after     time.Duration
	}{
		{"without a connection", func(s *shelf) { s.way = never }, false, scriptTTL + time.Second},
		{"without an answer for long", func(s *shelf) { s.way = never }, true, (1+lapsesFor)*scriptTTL + time.Second},
		{"taken by somebody else", func(s *shelf) {
			value, _ := json.Marshal(Claim{Holder: "two", Term: 99})
			s.entry = kv.Entry{Value: value, Revision: s.entry.Revision + 1}
		}, true, scriptTTL / 2},
		{"taken by a namesake", func(s *shelf) {
			value, _ := json.Marshal(Claim{Holder: "one", Term: 99})
			s.entry = kv.Entry{Value: value, Revision: s.entry.Revision + 1}
		}, true, scriptTTL / 2},
		{"deleted", func(s *shelf) { s.entry = kv.Entry{} }, true, scriptTTL / 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &shelf{way: atOnce}
				defer s.packets.Wait()
				l := contender(s, "one", func() bool { return row.connected }).win(t.Context())
				s.mu.Lock()
				row.harm(s)
				s.mu.Unlock()
				time.Sleep(row.after)
				if !l.isLost() {
					t.Fatalf("it is not lost after %v", row.after)
				}
				if err := l.Hold(t.Context()); !errors.Is(err, link.ErrDeposed) { // also while it would last, had nobody taken it
					t.Errorf("Hold() = %v, want %v", err, link.ErrDeposed)
				}
				s.free(t, l)
			})
		})
	}
}

func TestAReleasedLeaseHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{way: atOnce}
		defer s.packets.Wait()
		for _, after := range []time.Duration{0, 2 * scriptTTL} {
			l := contender(s, "one", func() bool { return true }).win(t.Context())
			s.free(t, l)
			time.Sleep(after)
			ctx, cancel := context.WithTimeout(t.Context(), scriptTTL)
			if err := l.Hold(ctx); !errors.Is(err, link.ErrDeposed) {
				t.Errorf("Hold() %v after the release = %v, want %v", after, err, link.ErrDeposed)
			}
			cancel()
		}
	})
}

func TestSlownessIsForgottenWithTheLastLeaseAndEasedByShortTerms(t *testing.T) {
	t.Parallel()
	p := newPresence(nil)
	one, two := &Lease{cfg: Config{Name: "one"}}, &Lease{cfg: Config{Name: "two"}}
	p.hold(one)
	p.hold(two)
	p.took, p.measured = 4*time.Second, time.Now()
	p.leave(one)
	if p.took == 0 {
		t.Error("a process that still leads forgot how slow it is")
	}
	p.leave(two)
	if p.took != 0 || !p.measured.IsZero() {
		t.Errorf("a process that leads no more still counts as slow: %v", p.took)
	}
	k := &contest{cfg: Config{TTL: 3 * time.Second, PingTimeout: time.Second}}
	var asked []int64
	for k.held.PingTimeout = 2000; k.held.PingTimeout > 0 && len(asked) < 20; k.held.PingTimeout = k.inherited() {
		asked = append(asked, k.held.PingTimeout)
	}
	if want := []int64{2000, 1500, 1250, 1125, 1062, 1031, 1015, 1007, 1003, 1001, 1000}; !slices.Equal(asked, want) {
		t.Errorf("one term after the other asks for %d ms, want %d", asked, want)
	}
}

// TestTwoProcessesNeverLeadAtTheSameTime over random delays, lost answers and stops, in which
// nobody answers pings: all that there is to go by is time.
func TestTwoProcessesNeverLeadAtTheSameTime(t *testing.T) {
	t.Parallel()
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				slow := []time.Duration{time.Millisecond, scriptTTL / 8, scriptTTL / 2, 2 * scriptTTL}[seed%4]
				s := &shelf{way: func(string) (time.Duration, time.Duration, bool) {
					return time.Duration(rnd.Int64N(int64(slow))), time.Duration(rnd.Int64N(int64(slow))), rnd.IntN(8) == 0
				}}
				defer s.packets.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var mu sync.Mutex
				leads := map[string]*Lease{}
				terms := map[uint64]string{}
				pauses := map[string]time.Duration{}
				for _, holder := range []string{"one", "two", "three"} {
					pauses[holder] = time.Duration(rnd.Int64N(int64(8 * scriptTTL)))
				}
				for holder, pause := range pauses {
					all.Go(func() {
						for ctx.Err() == nil {
							l := contender(s, holder, func() bool { return true }).win(ctx)
							if l == nil {
								return
							}
							mu.Lock()
							if other, ok := terms[l.Term]; ok {
								t.Errorf("term %d of %s was %s's", l.Term, holder, other)
							}
							terms[l.Term], leads[holder] = holder, l
							mu.Unlock()
							select {
							case <-l.Lost():
							case <-time.After(pause):
							case <-ctx.Done():
							}
							mu.Lock()
							delete(leads, holder)
							mu.Unlock()
							last, done := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
							_ = l.Release(last)
							done()
						}
					})
				}
				for range 2000 {
					time.Sleep(50 * time.Millisecond)
					mu.Lock()
					var now []string
					for holder, l := range leads {
						if l.valid() && !l.isLost() {
							now = append(now, holder)
						}
					}
					mu.Unlock()
					if len(now) > 1 {
						t.Fatalf("%v lead at the same time", now)
					}
				}
				cancel()
				all.Wait()
				if len(terms) == 0 && slow <= scriptTTL {
					t.Error("nobody ever led")
				}
			})
		})
	}
}
