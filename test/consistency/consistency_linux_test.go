package consistency

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestAnswersKeepTheirBoundsWhateverIsStoppedOrKilled(t *testing.T) {
	t.Parallel()
	judge(t, newCrew(t, 1), number(t, "DELTAPLANE_ANSWERS", 2000))
}

// Each server of the log applies what was agreed on at its own pace, so that readers see more or
// less than its leader says.
func TestAnswersFromAReplicatedLogKeepTheirBounds(t *testing.T) {
	t.Parallel()
	judge(t, newCrew(t, 3), number(t, "DELTAPLANE_ANSWERS", 1000))
}

// judge compares so many answers with what happened at the source, while one fault follows the
// other.
func judge(t *testing.T, c *crew, most int) {
	t.Helper()
	v := newVerdicts(t, c.src)
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range 6 {
		r := &reader{c: c, v: v}
		readers.Go(func() { r.run(ctx) })
	}
	for _, x := range c.replicas {
		r := &reader{c: c, v: v}
		readers.Go(func() { r.watch(ctx, x) })
	}
	troubles := map[string]int{}
	began, last := time.Now(), time.Now()
	for n := 0; n < most && !t.Failed(); {
		troubles[c.trouble()]++
		time.Sleep(200 * time.Millisecond)
		if now := v.count(); now > n {
			n, last = now, time.Now()
		} else if time.Since(last) > 2*time.Minute {
			t.Fatalf("no answer since %v; refused: %v", last, v.refused)
		}
	}
	cancel()
	readers.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	t.Logf("%v answers in %v, %d changes, %v", v.answers, time.Since(began).Round(time.Second), c.src.now()-firstRV, troubles)
	t.Logf("%d say that they are not exact; %d are outside of their bounds, %d of them claimed to be exact; refused: %v", v.inexact, v.wrong, v.claimed, v.refused)
}

// What one replica has shown, the other does not show as it was before, when it is given the upper
// bound.
func TestTheUpperBoundOfOneReplicaKeepsTheOtherFromGoingBack(t *testing.T) {
	t.Parallel()
	rounds := number(t, "DELTAPLANE_ROUNDS", 6)
	c := newCrew(t, 1)
	v := newVerdicts(t, c.src)
	list := func(i int, least *deltav1.Revision) (got shown, b bounds, resp *indexv1.ListResponse) {
		t.Helper()
		c.until(fmt.Sprintf("List of indexer %d at %v", i, least), func(ctx context.Context) (err error) {
			resp, err = c.replicas[i].List(ctx, &indexv1.ListRequest{
				Collection: pods, Consistency: &indexv1.Consistency{AtLeast: least, Timeout: durationpb.New(8 * time.Second)},
			})
			if err == nil {
				got, err = shownBy(resp.GetObjects())
			}
			if err == nil {
				b, err = boundsOf(resp)
			}
			return err
		})
		v.note("List", b, v.objects(got, b, all, whatever))
		return got, b, resp
	}
	inexact, back, byRevision := 0, 0, 0
	for round := range rounds {
		one := round % 2
		two := 1 - one
		for _, p := range c.indexes {
			p.Signal(syscall.SIGSTOP)
		}
		for from := c.src.now(); c.src.now() < from+2*rate/3; {
			time.Sleep(10 * time.Millisecond)
		}
		c.indexes[one].Signal(syscall.SIGCONT)
		first, b, resp := list(one, nil)
		for n := 0; n < 100 && b.exact(); n++ { // until it is met while it catches up, which is when it matters
			first, b, resp = list(one, nil)
		}
		if !b.exact() {
			inexact++
		}
		c.indexes[two].Signal(syscall.SIGCONT)
		second, b2, _ := list(two, resp.GetRevision())
		byRevision += min(v.older(first, second, b, b2), 1)
		second, b2, _ = list(two, resp.GetUpper())
		if n := v.older(first, second, b, b2); n > 0 {
			if back++; back < 5 {
				t.Errorf("round %d: indexer %d shows %d keys at %v as they were before what indexer %d showed at %v", round, two, n, b2, one, b)
			}
		}
	}
	t.Logf("%d rounds: %d first lists say that they are not exact; %d second lists go back by the upper bound, %d would by the revision", rounds, inexact, back, byRevision)
}
