package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream/kv"
)

// lapsesFor, times the TTL, is how long a lease that is over by our own clock is still waited for
// while the server is at hand and owes an answer. Nothing is written meanwhile, and nothing torn
// down: where a machine starves, every takeover would make it starve more.
const lapsesFor = 3

// keeper is the bucket of leases as a lease needs it.
type keeper interface {
	Get(ctx context.Context, key string) (kv.Entry, error)
	Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)
}

// renewal is an attempt to renew: the claim with that beat over a revision. Its answer may come
// late, or never.
type renewal struct {
	beat, over uint64
	rev        uint64
	err        error
}

// sight is the bucket's entry as it was read after a renewal was refused.
type sight struct {
	look  uint64
	entry kv.Entry
	err   error
}

// tenure renews one lease. Any number of renewals may be unanswered: only what is known to be in
// the bucket counts, and it counts from when it was sent, since those who wait count from when they
// saw it. How late an answer is does not matter to who holds the lease, only to whether we know it.
//
//	valid --TTL since the last one in the bucket was sent--> lapsed --one is found in the bucket, sent less than the TTL ago--> valid
//	  |                                                        |--no answer is due, no connection, or too long--> lost
//	  '-------------- the claim is not ours ---> lost <--------'
type tenure struct {
	l       *Lease
	mine    Claim
	rev     uint64               // the newest known to be ours
	until   time.Time            // the lease is ours by our clock
	sent    map[uint64]time.Time // by beat; of those newer than what is known to be in the bucket
	last    time.Time            // when the newest was sent
	pending []uint64             // whose answers are due, oldest first
	looks   []uint64             // under way, oldest first
	looked  uint64               // how often
	refused bool                 // what was heard last is that there can be no answer
	news    uint64               // the beat by which what was reported is stored; 0 when it is
	eased   time.Time

	answers chan renewal
	sights  chan sight
}

func newTenure(l *Lease, mine Claim, rev uint64, sent time.Time) *tenure {
	t := &tenure{
		l: l, mine: mine, rev: rev, sent: map[uint64]time.Time{}, last: sent, eased: time.Now(),
		answers: make(chan renewal), sights: make(chan sight),
	}
	t.extend(sent)
	return t
}

func (t *tenure) run(ctx context.Context) {
	l := t.l
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		l.loops.Wait()
		l.rev = t.rev
		close(l.done)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	reconnected := l.reconnected()
	for {
		now := time.Now()
		if !now.Before(t.due()) {
			t.send(ctx, now)
		}
		if t.over(now) {
			t.lose(fmt.Errorf("not renewed for %v", now.Sub(t.until.Add(-l.cfg.TTL)).Round(time.Millisecond)))
			return
		}
		timer.Reset(t.next(now).Sub(now))
		var taken error
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-reconnected:
			reconnected = l.reconnected()
			t.send(ctx, time.Now()) // what was under way may never be answered
		case <-l.kick:
			t.news = t.mine.Beat + 1
			t.refresh(ctx)
		case r := <-t.answers:
			t.answered(ctx, r)
		case s := <-t.sights:
			taken = t.saw(ctx, s)
		}
		if taken != nil {
			t.lose(taken)
			return
		}
	}
}

// due is when to send the next renewal: a quarter of the TTL after the last, and rarer while
// answers are due, as they come from a server that is slow.
func (t *tenure) due() time.Time { return t.last.Add(t.l.cfg.TTL / 4 << min(len(t.pending), 4)) }

// next is when to look again.
func (t *tenure) next(now time.Time) time.Time {
	next := t.due()
	if now.Before(t.until) && t.until.Before(next) {
		return t.until
	}
	if look := now.Add(t.l.cfg.TTL / 4); look.Before(next) {
		return look
	}
	return next
}

// over says that the lease is over by our own clock, and that nothing is left to wait for.
func (t *tenure) over(now time.Time) bool {
	switch {
	case now.Before(t.until):
		return false
	case len(t.pending) == 0 && len(t.looks) == 0 && t.refused, !t.l.connected():
		return true
	}
	return now.Sub(t.until) >= lapsesFor*t.l.cfg.TTL
}

func (t *tenure) extend(sent time.Time) {
	if until := sent.Add(t.l.cfg.TTL); until.After(t.until) {
		t.until = until
		t.l.until.Store(&until)
		t.l.proved.Fire()
	}
}

// send sends the claim as it is now over the newest revision known to be ours.
func (t *tenure) send(ctx context.Context, now time.Time) {
	l := t.l
	t.adjust(ctx)
	t.mine.Beat++
	t.mine.Acked, t.mine.Epoch, t.mine.Complete, t.mine.Due = l.acked.Load(), l.epoch.Load(), l.whole.Load(), l.owed.Load()
	t.last, t.sent[t.mine.Beat] = now, now
	r := renewal{beat: t.mine.Beat, over: t.rev}
	value, err := json.Marshal(t.mine)
	if err != nil { // it is made of text and numbers
		l.presence.c.Config.Log.Error("lease cannot be renewed", slog.String("lease", l.cfg.Name), slog.String("error", err.Error()))
		return
	}
	t.pending = append(t.pending, r.beat)
	l.loops.Go(func() {
		try, cancel := context.WithTimeout(ctx, 2*l.cfg.TTL)
		defer cancel()
		r.rev, r.err = l.bucket.Update(try, l.cfg.Name, value, r.over)
		select {
		case t.answers <- r:
		case <-ctx.Done():
		}
	})
}

// answered takes the answer to a renewal. Those to earlier ones are waited for no more: they would
// have come before.
func (t *tenure) answered(ctx context.Context, r renewal) {
	t.pending = askedAfter(t.pending, r.beat)
	t.refused = r.err != nil && !errors.Is(r.err, kv.ErrConflict)
	switch {
	case r.err == nil:
		t.prove(r.beat, r.rev)
		t.refresh(ctx)
	case !errors.Is(r.err, kv.ErrConflict): // the next one is sent when it is due
	case r.over != t.rev:
		t.refresh(ctx) // an earlier one had arrived
	default:
		t.look(ctx) // an earlier one may have arrived although its answer did not
	}
}

// askedAfter is what of asked was asked after n.
func askedAfter(asked []uint64, n uint64) []uint64 {
	for len(asked) > 0 && asked[0] <= n {
		asked = asked[1:]
	}
	return asked
}

// look reads the bucket.
func (t *tenure) look(ctx context.Context) {
	t.looked++
	t.looks = append(t.looks, t.looked)
	l, s := t.l, sight{look: t.looked}
	l.loops.Go(func() {
		try, cancel := context.WithTimeout(ctx, 2*l.cfg.TTL)
		defer cancel()
		s.entry, s.err = l.bucket.Get(try, l.cfg.Name)
		select {
		case t.sights <- s:
		case <-ctx.Done():
		}
	})
}

// saw takes what the bucket holds; an error is that somebody else has the lease. An entry that is
// older than what is known comes from a replica that is behind, and says nothing.
func (t *tenure) saw(ctx context.Context, s sight) error {
	t.looks = askedAfter(t.looks, s.look)
	t.refused = s.err != nil && !errors.Is(s.err, kv.ErrNoKey)
	if t.refused {
		return nil // the next renewal is refused, too
	}
	claim, ours := t.l.holds(s.entry)
	switch {
	case ours && s.entry.Revision > t.rev:
		t.prove(claim.Beat, s.entry.Revision)
		t.refresh(ctx)
		return nil
	case s.err == nil && s.entry.Revision <= t.rev:
		return nil
	}
	if s.err != nil {
		return s.err
	}
	return fmt.Errorf("taken by %q", claim.Holder)
}

// prove takes note that a renewal is known to be in the bucket, as that revision.
func (t *tenure) prove(beat, rev uint64) {
	if rev <= t.rev {
		return
	}
	t.rev = rev
	if sent, ok := t.sent[beat]; ok {
		t.extend(sent)
	}
	for b := range t.sent {
		if b <= beat {
			delete(t.sent, b)
		}
	}
	if beat >= t.news {
		t.news = 0
	}
}

// refresh sends what was reported meanwhile, or what is due by what is known to be in the bucket,
// unless an answer is.
func (t *tenure) refresh(ctx context.Context) {
	now, proven := time.Now(), t.until.Add(-t.l.cfg.TTL)
	if len(t.pending) == 0 && len(t.looks) == 0 && (t.news > 0 || now.Sub(proven) >= t.l.cfg.TTL/4) {
		t.send(ctx, now)
	}
}

func (t *tenure) lose(why error) {
	l := t.l
	l.presence.leave(l)
	l.presence.c.Config.Log.Debug("lease lost", slog.String("lease", l.cfg.Name), slog.String("error", why.Error()))
	close(l.lost)
}

// easeEvery is how long nothing must happen before the ping timeout is halved again.
const easeEvery = time.Minute

// adjust asks those who wait for a longer ping timeout when a ping to ourselves takes long: where
// the machine starves, processes would depose each other in turn for being slow, and each takeover
// makes it starve more.
func (t *tenure) adjust(ctx context.Context) {
	l, mine := t.l, &t.mine
	if mine.Process == "" {
		return
	}
	least := l.cfg.PingTimeout.Milliseconds()
	switch want := min(2*l.presence.latency(ctx, &l.loops, l.cfg.TTL/4), l.cfg.TTL).Milliseconds(); {
	case want > max(mine.PingTimeout, least):
		l.presence.c.Config.Log.Debug("this process is slow to answer pings: asking standbys for a longer ping timeout",
			slog.String("lease", l.cfg.Name), slog.Int64("ping_timeout_ms", want))
		mine.PingTimeout, t.eased = want, time.Now()
	case mine.PingTimeout > least && time.Since(t.eased) > easeEvery:
		mine.PingTimeout, t.eased = max(mine.PingTimeout/2, least), time.Now()
	}
}
