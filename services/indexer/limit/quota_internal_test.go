package limit

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestAQuotaNamesTheLimitAndForgetsClientsThatHoldNothing(t *testing.T) {
	t.Parallel()
	q := Quota{All: Limit{Name: "all", Most: 100}, Each: Limit{Name: "each", Most: 40}}
	rng := rand.New(rand.NewPCG(1, 2))
	type taken struct {
		client string
		n      int
	}
	var list []taken
	held, by := 0, map[string]int{}
	for range 20_000 {
		if len(list) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(list))
			x := list[i]
			q.Give(x.client, x.n)
			held, by[x.client] = held-x.n, by[x.client]-x.n
			list = append(list[:i], list[i+1:]...)
			continue
		}
		x := taken{[]string{"", "a", "b", "c", "d"}[rng.IntN(5)], rng.IntN(30)}
		want := ""
		switch {
		case held+x.n > 100:
			want = "all"
		case x.client != "" && by[x.client]+x.n > 40:
			want = "each"
		}
		got := ""
		if l := q.Take(x.client, x.n); l != nil {
			got = l.Name
		}
		if got != want {
			t.Fatalf("%q takes %d of %d, %d its own: refused by %q, want %q", x.client, x.n, held, by[x.client], got, want)
		}
		if want == "" {
			list = append(list, x)
			held, by[x.client] = held+x.n, by[x.client]+x.n
		}
	}
	for _, x := range list {
		q.Give(x.client, x.n)
	}
	if q.Used() != 0 || len(q.by) != 0 {
		t.Errorf("%d are held by %v when all is given back", q.Used(), q.by)
	}
}

// What is lent and what is taken never pass the limit together, also when they
// meet.
func TestLentAndTakenStayBelowTheLimit(t *testing.T) {
	t.Parallel()
	const most = 1600
	q := Quota{All: Limit{Name: "all", Most: most}}
	if !q.Lend(most/lentShare) || q.Lend(1) {
		t.Error("not just the share is lent")
	}
	if l := q.Take("", most-most/lentShare); l != nil {
		t.Errorf("what is not lent is refused by %q", l.Name)
	}
	if l := q.Take("", 1); l == nil {
		t.Error("more than all is taken")
	}
	q.giveLent(most / lentShare)
	if l := q.Take("", 1); l != nil || q.Lend(1) {
		t.Errorf("%v; something is lent when less than the share is free beside it", l)
	}
	if q.Give("", most-most/lentShare+1); !q.Lend(1) {
		t.Error("nothing is lent when nothing is held")
	}
	if q.giveLent(1); q.Used() != 0 {
		t.Errorf("%d are held when all is given back", q.Used())
	}
	var held atomic.Int64 // less than what is counted, at any time
	var lent, taken, over atomic.Int64
	var done sync.WaitGroup
	for seed := range uint64(4) {
		done.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for range 20_000 {
				n := rng.IntN(most/8) + 1
				give := func() { q.Give("", n) }
				if rng.IntN(2) == 0 {
					n = rng.IntN(most/lentShare) + 1
					if !q.Lend(n) {
						continue
					}
					lent.Add(1)
					give = func() { q.giveLent(n) }
				} else {
					n *= 1 + 7*rng.IntN(2)
					if q.Take("", n) != nil {
						continue
					}
					taken.Add(1)
				}
				if held.Add(int64(n)) > most {
					over.Add(1)
				}
				runtime.Gosched()
				held.Add(int64(-n))
				give()
			}
		})
	}
	done.Wait()
	if over.Load() > 0 || lent.Load() == 0 || taken.Load() == 0 || q.Used() != 0 {
		t.Errorf("%d lent, %d taken, the limit was passed %d times; %d are held in the end", lent.Load(), taken.Load(), over.Load(), q.Used())
	}
	free := Quota{}
	if !free.Lend(1<<40) || free.Take("", 1<<40) != nil {
		t.Error("without a limit something is refused")
	}
}
