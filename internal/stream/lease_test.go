package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// long is a TTL that no test waits for: what happens before it happened because of pings.
const long = 5 * time.Minute

func lease(t testing.TB, c *stream.Conn, cfg stream.LeaseConfig) *stream.Lease {
	t.Helper()
	cfg.Name = "dev/pods.v1"
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := c.Lease(ctx, cfg)
	if err != nil {
		t.Fatalf("%s: %v", cfg.Holder, err)
	}
	t.Cleanup(func() { _ = l.Release(context.Background()) })
	return l
}

// waiting waits for a lease beside the test, once it has seen who holds it.
func waiting(t testing.TB, c *stream.Conn, cfg stream.LeaseConfig) <-chan *stream.Lease {
	t.Helper()
	got, seen := make(chan *stream.Lease, 1), make(chan struct{})
	var once sync.Once
	cfg.Seen = func(held stream.Claim) {
		if held.Holder != "" {
			once.Do(func() { close(seen) })
		}
	}
	go func() {
		defer close(got)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		cfg.Name = "dev/pods.v1"
		if l, err := c.Lease(ctx, cfg); err == nil {
			got <- l
		}
	}()
	<-seen
	return got
}

func TestALeaseIsTakenAtOnceFromAHolderWhoseConnectionIsGone(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c1, c2 := connect(t, url, nil), connect(t, url, nil)
	first := lease(t, c1, stream.LeaseConfig{Holder: "one", TTL: long, PingTimeout: long, PingEvery: 50 * time.Millisecond})
	got := waiting(t, c2, stream.LeaseConfig{Holder: "two", TTL: long, PingTimeout: long, PingEvery: 50 * time.Millisecond})
	c1.Close()
	second := <-got
	if second == nil {
		t.Fatal("the lease of a holder that is gone was not taken in time")
	}
	defer func() { _ = second.Release(context.Background()) }()
	if second.Term <= first.Term {
		t.Errorf("term %d after %d", second.Term, first.Term)
	}
}

func TestALeaseIsHandedOverAtOnce(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c1, c2 := connect(t, url, nil), connect(t, url, nil)
	first := lease(t, c1, stream.LeaseConfig{Holder: "one", Form: "f", TTL: long})
	first.Completed()
	got := waiting(t, c2, stream.LeaseConfig{Holder: "two", Form: "f", TTL: long})
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := <-got
	if second == nil {
		t.Fatal("a released lease was not taken in time")
	}
	if second.Form != "f" || !second.Complete {
		t.Errorf("form %q, complete %v; want what the last holder said", second.Form, second.Complete)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if third := lease(t, c1, stream.LeaseConfig{Holder: "one", Form: "g", TTL: long}); third.Form != "f" || third.Complete {
		t.Errorf("form %q, complete %v; want the last holder's form, and no complete list in another", third.Form, third.Complete)
	}
}

func TestALeaseIsTakenFromAHolderThatLeavesPingsUnanswered(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	// A holder that is there and says nothing, as a process that was stopped.
	mute, err := nc.SubscribeSync("deltaplane.alive.mute")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	b, err := c.Bucket(t.Context(), "deltaplane-leases", 0)
	if err != nil {
		t.Fatal(err)
	}
	claim := stream.Claim{Holder: "stopped", Term: 77, Process: "mute", Acked: 5, Epoch: 6, PingTimeout: 900}
	value, err := json.Marshal(claim)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), "dev/pods.v1", value); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	l := lease(t, c, stream.LeaseConfig{Holder: "two", TTL: long, PingTimeout: 500 * time.Millisecond, PingEvery: 100 * time.Millisecond})
	if l.Term <= 77 || l.Acked != 5 || l.Epoch != 6 {
		t.Errorf("term %d, acked %d, epoch %d; want what the claim said, and a higher term", l.Term, l.Acked, l.Epoch)
	}
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("taken after %v, before the ping timeout that the holder had asked for was over", took)
	}
	e, err := b.Get(t.Context(), "dev/pods.v1")
	if err != nil {
		t.Fatal(err)
	}
	var now stream.Claim
	if err := json.Unmarshal(e.Value, &now); err != nil || now.PingTimeout < 700 {
		t.Errorf("the new holder asks for %d ms, %v; want half of what the last one asked for beyond 500, or more", now.PingTimeout, err)
	}
	if n, _, err := mute.Pending(); err != nil || n < 5 {
		t.Errorf("%d pings (%v), want some before the holder is given up", n, err)
	}
}

func TestAHolderThatAnswersKeepsItsLease(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c1, c2 := connect(t, url, nil), connect(t, url, nil)
	cfg := stream.LeaseConfig{Holder: "one", TTL: long, PingTimeout: 200 * time.Millisecond, PingEvery: 20 * time.Millisecond}
	first := lease(t, c1, cfg)
	cfg.Holder, cfg.Name = "two", "dev/pods.v1"
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if l, err := c2.Lease(ctx, cfg); err == nil {
		t.Errorf("term %d was granted beside a holder that lives", l.Term)
	}
	select {
	case <-first.Lost():
		t.Error("the lease was lost")
	default:
	}
}

func TestAFreeLeaseIsLeftToThoseWhoAreBetterPrepared(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c1, c2 := connect(t, url, nil), connect(t, url, nil)
	type grant struct {
		holder string
		lease  *stream.Lease
	}
	got := make(chan grant, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	compete := func(c *stream.Conn, holder string, delay time.Duration) {
		all.Go(func() {
			l, err := c.Lease(ctx, stream.LeaseConfig{
				Name: "dev/pods.v1", Holder: holder, TTL: long, Delay: func(stream.Claim) time.Duration { return delay },
			})
			if err == nil {
				got <- grant{holder, l}
			}
		})
	}
	compete(c1, "cold", long)
	compete(c2, "warm", 0)
	if g := <-got; g.holder != "warm" {
		t.Errorf("%s was granted the lease", g.holder)
	} else {
		defer func() { _ = g.lease.Release(context.Background()) }()
	}
	cancel()
	all.Wait()
}

func TestSeveralWhoWaitRaceAndOneWins(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	const n = 8
	var mu sync.Mutex
	holders, most := 0, 0
	terms := map[uint64]bool{}
	var all sync.WaitGroup
	for i := range n {
		c := connect(t, url, nil)
		all.Go(func() {
			l, err := c.Lease(t.Context(), stream.LeaseConfig{Name: "dev/pods.v1", Holder: "h" + string(rune('a'+i)), TTL: long})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			holders++
			most = max(most, holders)
			if terms[l.Term] {
				t.Errorf("term %d was granted twice", l.Term)
			}
			terms[l.Term] = true
			mu.Unlock()
			time.Sleep(5 * time.Millisecond) // so that two holders would meet
			mu.Lock()
			holders--
			mu.Unlock()
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most != 1 || len(terms) != n {
		t.Errorf("%d holders at once, %d terms; want one at a time, and all in turn", most, len(terms))
	}
}

// TestAProcessThatCannotBePingedIsNotTakenForGone: where a user may not subscribe, pings find
// nobody although everybody lives.
func TestAProcessThatCannotBePingedIsNotTakenForGone(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, nil)
	b, err := c.Bucket(t.Context(), "deltaplane-leases", 0)
	if err != nil {
		t.Fatal(err)
	}
	value, err := json.Marshal(stream.Claim{Holder: "old", Term: 3})
	if err != nil || strings.Contains(string(value), "process") {
		t.Fatalf("claim %s, %v", value, err)
	}
	if _, err := b.Put(t.Context(), "dev/pods.v1", value); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	lease(t, c, stream.LeaseConfig{Holder: "two", TTL: time.Second, PingTimeout: 100 * time.Millisecond})
	if took := time.Since(began); took < time.Second {
		t.Errorf("taken after %v, want the whole TTL where there are no pings", took)
	}
}

func TestTheLeasesOfAProcessShareItsPings(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c1, c2 := connect(t, url, nil), connect(t, url, nil)
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	pings, err := nc.SubscribeSync("deltaplane.alive.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	const leases, every = 20, 200 * time.Millisecond
	seen := make(chan struct{}, 4*leases)
	for i := range leases {
		cfg := stream.LeaseConfig{Name: "dev/r" + string(rune('a'+i)) + ".v1", Holder: "one", TTL: long, PingEvery: every}
		l, err := c1.Lease(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Release(context.Background()) }()
		cfg.Holder = "two"
		cfg.Seen = func(stream.Claim) { seen <- struct{}{} }
		all.Go(func() {
			if _, err := c2.Lease(ctx, cfg); err == nil {
				t.Error("a lease was taken from a holder that lives")
			}
		})
	}
	for range leases {
		<-seen
	}
	before, _, err := pings.Pending()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	time.Sleep(10 * every)
	rounds := int(time.Since(began)/every) + 1
	after, _, err := pings.Pending()
	if err != nil || after == before || after-before > 2*(rounds+2) {
		t.Errorf("%d pings in %d rounds for %d leases (%v); want two a round", after-before, rounds, leases, err)
	}
	cancel()
	all.Wait()
}

// TestALeaseIsNotTakenFromOneThatThisProcessStillHas: one part of a process ends, and still writes,
// while another asks for the same lease, as to delete the log.
func TestALeaseIsNotTakenFromOneThatThisProcessStillHas(t *testing.T) {
	t.Parallel()
	c := connect(t, embeddedtest.NATS(t).URL(), nil)
	cfg := stream.LeaseConfig{Holder: "same", TTL: 20 * time.Second}
	first := lease(t, c, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	cfg.Name = "dev/pods.v1"
	if l, err := c.Lease(ctx, cfg); err == nil {
		_ = l.Release(t.Context())
		t.Fatal("it was taken from its holder, which is at work")
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := lease(t, c, cfg); next.Term <= first.Term {
		t.Errorf("term %d after %d", next.Term, first.Term)
	}
}

// TestABucketOfLeasesThatIsDeletedIsMadeAgain by those who wait: no caller hears that there is no
// JetStream.
func TestABucketOfLeasesThatIsDeletedIsMadeAgain(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	c1, c2 := connect(t, url, nil), connect(t, url, nil)
	lease(t, c1, stream.LeaseConfig{Holder: "one", TTL: 2 * time.Second})
	said := make(chan error, 100)
	got := waiting(t, c2, stream.LeaseConfig{Holder: "two", TTL: 2 * time.Second, Failed: func(err error, _ time.Duration) { said <- err }})
	if err := operator(t, url).DeleteKeyValue(t.Context(), "deltaplane-leases"); err != nil {
		t.Fatal(err)
	}
	second := <-got
	if second == nil {
		t.Fatal("a lease whose bucket was deleted was not taken in time")
	}
	defer func() { _ = second.Release(context.Background()) }()
	close(said)
	for err := range said {
		if errors.Is(err, stream.ErrNoJetStream) {
			t.Errorf("it was said that %v", err)
		}
	}
}
