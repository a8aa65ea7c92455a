package logs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
)

// failoverRate is how many events happen a second while leaders come and go.
const failoverRate = 500

// logFailover ends the leading reflector again and again under load, once killed
// and once stopped for longer than its lease, with another one standing by, and
// measures the time until the next leader's first change is at a consumer. At the
// end nothing may be missing, and nobody may have asked for a list.
func logFailover(ctx context.Context, b *harness.Bench) (err error) {
	m, err := startMirror(ctx, b, "failover", scriptConfig{Pods: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	c := &crew{m: m, members: map[string]*system.Reflecting{}}
	defer func() { err = errors.Join(err, c.close()) }()
	for range 2 {
		if err := c.hire(ctx); err != nil {
			return err
		}
		if err := m.settle(); err != nil {
			return err
		}
	}
	if err := m.script.Call("start", failoverRate, nil); err != nil {
		return err
	}
	began, err := m.script.counts()
	if err != nil {
		return err
	}
	kills, stops := harness.Pick(b, 3, 200), harness.Pick(b, 2, 100)
	if b.Rounds > 0 {
		kills, stops = b.Rounds, b.Rounds
	}
	if err := c.succession(ctx, kills, "killed", c.killed); err != nil {
		return err
	}
	if err := c.succession(ctx, stops, "stopped", c.stopped); err != nil {
		return err
	}
	if err := errors.Join(m.script.Call("halt", nil, nil), m.settle()); err != nil {
		return err
	}
	return c.judge(began)
}

// judge adds what the whole succession came to.
func (c *crew) judge(began asked) error {
	var f faults
	if err := c.m.reader.Call("faults", nil, &f); err != nil {
		return err
	}
	end, err := c.m.script.counts()
	if err != nil {
		return err
	}
	b := c.m.b
	none := func(name, unit string, n int) {
		b.Add(harness.Alone(name+" over all failovers", unit, []float64{float64(n)}, harness.AtMost("ours", 0)))
	}
	none("lists asked of the API server", "lists", end.Lists+end.Streams-began.Lists-began.Streams)
	none("gaps below a claimed revision, resets, unreadable and damaged records", "faults", f.Gaps+f.Resets-1+f.Unreadable+f.Damaged)
	none("records of an old term after a newer term record", "records", f.OldTerm)
	b.Note("failover: %d events a second of %d bytes, %d changes read of %d terms, %d of them older than what was held (dropped); watches opened %d; the state at the end has the source's hash",
		failoverRate, c.m.script.FullMean, f.Deltas, f.Terms, f.Back, end.Watches-began.Watches)
	return nil
}

// crew is the reflectors that compete for one collection.
type crew struct {
	m       *mirror
	members map[string]*system.Reflecting
	hired   int
}

// hire starts one more reflector.
func (c *crew) hire(ctx context.Context) error {
	c.hired++
	holder := "r" + strconv.Itoa(c.hired)
	r, err := c.m.reflector(ctx, holder, c.m.nats)
	if err == nil {
		c.members[holder] = r
	}
	return err
}

func (c *crew) close() error {
	var errs []error
	for _, r := range c.members {
		_ = r.Cmd.Process.Signal(syscall.SIGCONT) // one that is stopped could not end
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// succession ends n leaders, one after the other, and adds how long it took each time.
func (c *crew) succession(ctx context.Context, n int, how string, end func(context.Context, *system.Reflecting) (time.Time, func(context.Context) error, error)) error {
	var took []time.Duration
	var now leadership
	if err := c.m.reader.Call("term", 0, &now); err != nil {
		return err
	}
	for i := range n {
		leader := c.members[now.Holder]
		if leader == nil {
			return fmt.Errorf("the log's last term is of %q, who is none of ours", now.Holder)
		}
		for holder, r := range c.members {
			if holder != now.Holder {
				if err := r.Await(ctx, "standing by", system.Ready); err != nil {
					return err
				}
			}
		}
		time.Sleep(rand.N(time.Second)) // at any moment of the lease
		at, after, err := end(ctx, leader)
		if err != nil {
			return err
		}
		if err := c.m.reader.Call("term", now.Term, &now); err != nil {
			return fmt.Errorf("leader %d %s: %w", i+1, how, err)
		}
		took = append(took, time.Duration(now.At-at.UnixNano()))
		if err := after(ctx); err != nil {
			return err
		}
		if i%20 == 19 || c.m.b.Quick {
			c.m.b.Say("  failover: %d of %d leaders %s, the last took %v", i+1, n, how, took[i].Round(time.Millisecond))
		}
	}
	slices.Sort(took)
	seconds := func(q float64) []float64 { return []float64{harness.QuantileOf(took, q).Seconds()} }
	name := fmt.Sprintf("leading reflector %s, %d times -> next change at a consumer, p99", how, n)
	c.m.b.Add(harness.Alone(name, "s", seconds(.99), harness.AtMost("ours", 2)).With("p50", "s", seconds(.5)).With("least", "s", seconds(0)).With("most", "s", seconds(1)))
	return nil
}

// killed ends a leader as if its machine had gone; then another is hired.
func (c *crew) killed(_ context.Context, leader *system.Reflecting) (time.Time, func(context.Context) error, error) {
	at := time.Now()
	err := leader.Kill()
	delete(c.members, leader.Holder)
	return at, c.hire, err
}

// stopped holds a leader until its lease is over and another leads; then it lets it go on.
func (c *crew) stopped(_ context.Context, leader *system.Reflecting) (time.Time, func(context.Context) error, error) {
	at := time.Now()
	err := leader.Cmd.Process.Signal(syscall.SIGSTOP)
	return at, func(context.Context) error {
		time.Sleep(time.Until(at.Add(system.ReflectorLease + time.Second/2 + rand.N(time.Second/2)))) // it wakes up when its lease is over, no matter who took it
		return leader.Cmd.Process.Signal(syscall.SIGCONT)
	}, err
}
