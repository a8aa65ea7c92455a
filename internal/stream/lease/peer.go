package lease

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/deltaplane/deltaplane/internal/stream/link"
)

const (
	// aliveSubject and a process' token make the subject on which only that process answers.
	aliveSubject = "deltaplane.alive."
	// secondLook is how soon a process that seems to be gone is asked once more.
	secondLook = 50 * time.Millisecond
)

// presence answers pings for this process, so that others know at once when it is gone: its
// connection ends with it, and then the server itself answers that nobody is there.
type presence struct {
	c     *link.Conn
	token string

	mu        sync.Mutex // guards what follows
	answering bool
	reachable bool // a ping was answered
	peers     map[peerKey]*peer
	held      map[string]*Lease // the leases of this process that have not ended, by name

	measure  sync.Mutex // guards what follows
	took     time.Duration
	measured time.Time
	began    time.Time // of the ping that is under way
}

func newPresence(c *link.Conn) *presence {
	return &presence{c: c, token: nuid.Next(), peers: map[peerKey]*peer{}, held: map[string]*Lease{}}
}

// present begins to answer, and returns the token under which others can ping this process; empty
// when pings do not arrive, as where the user of the connection may not subscribe: everybody would
// think that we are gone.
func (p *presence) present(ctx context.Context) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.answering {
		_, err := p.c.NATS.Subscribe(aliveSubject+p.token, func(m *nats.Msg) { _ = m.Respond(nil) })
		p.answering = err == nil
	}
	if !p.reachable {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := p.c.NATS.RequestWithContext(ctx, aliveSubject+p.token, nil)
		p.reachable = err == nil
	}
	if !p.reachable {
		return ""
	}
	return p.token
}

// latency is how long a ping to ourselves took a moment ago, or has been taking so far: at most
// limit. It does not wait for one: what asks must not be late for it. The leases of a process share
// a ping, which runs in loops.
func (p *presence) latency(ctx context.Context, loops *sync.WaitGroup, limit time.Duration) time.Duration {
	p.measure.Lock()
	defer p.measure.Unlock()
	now := time.Now()
	if !p.began.IsZero() {
		return min(max(p.took, now.Sub(p.began)), limit)
	}
	if now.Sub(p.measured) > limit/2 {
		p.began = now
		loops.Go(func() {
			try, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			_, _ = p.c.NATS.RequestWithContext(try, aliveSubject+p.token, nil) // no answer is a slow one
			p.measure.Lock()
			defer p.measure.Unlock()
			if ctx.Err() == nil {
				p.measured = time.Now()
				p.took = p.measured.Sub(p.began)
			}
			p.began = time.Time{}
		})
	}
	return min(p.took, limit)
}

// hold notes that a lease of this process begins.
func (p *presence) hold(l *Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[l.cfg.Name] = l
}

// leave notes that a lease of this process has ended: released, or lost. With
// the last one how slow we were is forgotten: a process that was stopped was slow
// to answer itself, and would ask for a longer ping timeout when it leads again.
func (p *presence) leave(l *Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[l.cfg.Name] == l {
		delete(p.held, l.cfg.Name)
	}
	if len(p.held) == 0 {
		p.measure.Lock()
		p.took, p.measured = 0, time.Time{}
		p.measure.Unlock()
	}
}

// holds reports whether this process has the lease of that name and has not given it up.
func (p *presence) holds(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[name] != nil
}

type peerKey struct {
	token string
	every time.Duration
}

// peer is another process as its pings show it. A ping to ourselves goes with each: a round in
// which that one was not answered in time says something about us or the server, and nothing about
// the peer, so that a machine which starves does not depose anybody.
type peer struct {
	key     peerKey
	changed *link.Signal
	users   int // guarded by the presence's mu
	cancel  context.CancelFunc
	done    chan struct{}

	mu                   sync.Mutex // guards what follows
	self, heard, refused bool       // in the round under way
	refusals             int        // rounds one after the other
	silent               time.Duration
	gone                 bool
}

// meet returns what pings show of the process with the token. All leases that it holds share the
// pings.
func (p *presence) meet(ctx context.Context, token string, every time.Duration) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := peerKey{token, every}
	other := p.peers[key]
	if other == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // others may use it longer than its first user
		other = &peer{key: key, changed: link.NewSignal(), cancel: cancel, done: make(chan struct{})}
		p.peers[key] = other
		go func() {
			defer close(other.done)
			other.run(ctx, p)
		}()
	}
	other.users++
	return other
}

// part ends the pings with their last user.
func (p *presence) part(other *peer) {
	p.mu.Lock()
	other.users--
	last := other.users == 0
	if last {
		delete(p.peers, other.key)
	}
	p.mu.Unlock()
	if last {
		other.cancel()
		<-other.done
	}
}

// isGone says that the server knows of no such process, twice in a row.
func (p *peer) isGone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// silence is for how long pings have been left unanswered while our own were answered.
func (p *peer) silence() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent
}

func (p *peer) run(ctx context.Context, self *presence) {
	c := self.c
	inbox := c.NATS.NewInbox()
	sub, err := c.NATS.Subscribe(inbox+".*", func(m *nats.Msg) { p.answer(m, m.Subject == inbox+".self") })
	if err != nil {
		return // the connection was closed
	}
	defer func() { _ = sub.Unsubscribe() }()
	var settled time.Time // before it a peer that is not there may only be reconnecting, as we were
	reconnected := c.Events.Wait()
	wait := p.key.every
	for {
		_ = c.NATS.PublishRequest(aliveSubject+self.token, inbox+".self", nil) // an error is an unanswered ping
		_ = c.NATS.PublishRequest(aliveSubject+p.key.token, inbox+".peer", nil)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
			wait = p.round(wait, time.Now().After(settled))
		case <-reconnected:
			t.Stop()
			reconnected, settled, wait = c.Events.Wait(), time.Now().Add(5*p.key.every), p.key.every
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (p *peer) answer(m *nats.Msg, self bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	none := len(m.Data) == 0 && m.Header.Get("Status") == "503"
	switch {
	case self:
		p.self = p.self || !none
	case none:
		p.refused = true
	default:
		p.heard = true
	}
}

// round ends a round of pings and returns how long the next one lasts.
func (p *peer) round(lasted time.Duration, settled bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.key.every
	switch {
	case p.heard:
		p.silent, p.refusals, p.gone = 0, 0, false
	case !p.self: // nothing was learnt
	case p.refused:
		p.silent += lasted
		if p.refusals++; p.refusals > 1 && settled {
			p.gone = true
		} else {
			next = min(next, secondLook)
		}
	default:
		p.silent += lasted
		p.refusals = 0
	}
	p.self, p.heard, p.refused = false, false, false
	if p.silent > 0 {
		p.changed.Fire()
	}
	return next
}
