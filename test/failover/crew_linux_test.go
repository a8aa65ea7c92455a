package failover

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/test/child"
)

// crew is the reflectors that compete for the collection.
type crew struct {
	t       *testing.T
	like    role
	src     *source
	w       *witness
	members map[string]*member
	halt    func() // stops the source
	hired   int
}

type member struct {
	*child.Process
	client reflectorv1.ReflectorServiceClient
}

func newCrew(t *testing.T, nats string, replicas, size int) *crew {
	t.Helper()
	c := &crew{t: t, src: newSource(t), members: map[string]*member{}}
	c.w = newWitness(t, nats, c.src)
	c.like = role{NATS: nats, Source: c.src.URL, Replicas: replicas}
	for range size {
		c.hire(c.like)
	}
	if !c.w.until(60*time.Second, func() bool { return c.w.claimed > 0 }) {
		t.Fatal("the collection was not mirrored in time")
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.src.run(rate, stop)
	}()
	halt := func() {
		select {
		case <-stop:
		default:
			close(stop)
		}
		<-done
	}
	t.Cleanup(halt)
	c.halt = halt
	return c
}

// rate is how many changes happen a second.
const rate = 500

func (c *crew) hire(r role) string {
	c.t.Helper()
	c.hired++
	r.Name, r.Listen = "r"+strconv.Itoa(c.hired), embeddedtest.Ports(c.t, 1)[0]
	conn, err := rpc.Dial(r.Listen, rpc.DialConfig{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	c.members[r.Name] = &member{Process: child.Start(c.t, r), client: reflectorv1.NewReflectorServiceClient(conn)}
	return r.Name
}

// show is what a member says of itself; nil while it does not answer.
func (m *member) show(ctx context.Context) *reflectorv1.Reflection {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, err := m.client.ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
	if err != nil || len(resp.GetReflections()) != 1 {
		return nil
	}
	return resp.GetReflections()[0]
}

// await waits until a member shows what is wanted.
func (c *crew) await(who, what string, cond func(*reflectorv1.Reflection) bool) *reflectorv1.Reflection {
	c.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		r := c.members[who].show(c.t.Context())
		if r != nil && cond(r) {
			return r
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %s: not seen in time: %v", who, what, r)
		}
	}
}

func standingBy(r *reflectorv1.Reflection) bool {
	return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY && r.GetShadowRevision().GetEpoch() != 0 && r.GetLeader() != ""
}

// lead returns the term and the leader, once somebody else stands by.
func (c *crew) lead() (uint64, string) {
	c.t.Helper()
	term, holder := c.w.leadership()
	for who := range c.members {
		if who != holder {
			c.await(who, "standing by", standingBy)
			break
		}
	}
	return term, holder
}

// kill kills the leader, hires another and returns how long no change came.
func (c *crew) kill() time.Duration {
	c.t.Helper()
	term, holder := c.lead()
	at := time.Now()
	c.members[holder].Kill()
	delete(c.members, holder)
	next, ok := c.w.after(term, time.Minute)
	if !ok {
		c.t.Fatalf("nobody took over from %s", holder)
	}
	c.hire(c.like)
	return next.Sub(at)
}

// hand asks the leader to end, hires another and returns how long no change came.
func (c *crew) hand() time.Duration {
	c.t.Helper()
	term, holder := c.lead()
	at := time.Now()
	c.members[holder].Signal(syscall.SIGTERM)
	next, ok := c.w.after(term, time.Minute)
	if !ok {
		c.t.Fatalf("nobody took over from %s", holder)
	}
	<-c.members[holder].Done()
	delete(c.members, holder)
	c.hire(c.like)
	return next.Sub(at)
}

// pause stops the leader for longer than its lease and returns how long no change came.
func (c *crew) pause() time.Duration {
	c.t.Helper()
	term, holder := c.lead()
	m := c.members[holder]
	at := time.Now()
	m.Signal(syscall.SIGSTOP)
	next, ok := c.w.after(term, time.Minute)
	if !ok {
		c.t.Fatalf("nobody took over from %s", holder)
	}
	time.Sleep(time.Until(at.Add(leaseTTL + time.Second/2)))
	m.Signal(syscall.SIGCONT)
	c.await(holder, "standing by after it was stopped", standingBy)
	return next.Sub(at)
}

// judge ends the run: what the source saw, what the witness read, and the state at the end. A
// reader whose server was killed may have received more than the next one has caught up with, and
// is then told to begin again; it may be so often.
func (c *crew) judge(changes, again int) {
	c.t.Helper()
	c.halt()
	c.w.settle()
	lists, watches := c.src.requests()
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.t.Logf("%d lists, %d watches, %d terms, %d changes read, %d resets, revision %d", lists, watches, len(c.w.terms), c.w.deltas, c.w.resets, c.w.claimed)
	if lists != 1 {
		c.t.Errorf("%d lists, want the first one only", lists)
	}
	if len(c.w.terms) < changes+1 {
		c.t.Errorf("%d terms, want at least %d", len(c.w.terms), changes+1)
	}
	if c.w.oldTerm != 0 || c.w.gaps != 0 || c.w.resets > 1+again {
		c.t.Errorf("%d records of an old term after a newer one, %d gaps, %d resets; want none and the first reset", c.w.oldTerm, c.w.gaps, c.w.resets)
	}
	if !slices.IsSorted(c.w.terms) {
		c.t.Errorf("terms %v do not grow", c.w.terms)
	}
}

func distribution(took []time.Duration) string {
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1)+.5)].Round(time.Millisecond) }
	return fmt.Sprintf("least %v, p50 %v, p90 %v, p99 %v, most %v of %d", at(0), at(.5), at(.9), at(.99), at(1), len(took))
}
