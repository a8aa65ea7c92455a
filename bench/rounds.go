package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// A side is one of the things that take turns.
type side struct {
	name string
	// run works for about as long as it is told and returns named numbers.
	run func(ctx context.Context, d time.Duration) (map[string]float64, error)
}

// table holds what rounds returned: side, number, one value per round.
type table map[string]map[string][]float64

func (t table) of(side, number string) []float64 { return t[side][number] }

// foreignLimit is the share of the machine that others may use before a round is run again.
const foreignLimit = 0.10

// machineSide is the side of a table that tells about the machine: "foreign" is
// the share of it that others used.
const machineSide = "the machine"

// plan says how sides take turns.
type plan struct {
	what   string
	rounds int
	turn   time.Duration
	// patient repeats rounds in which somebody else used more than a tenth of
	// the machine, at most as many again as there are rounds.
	patient bool
	// cold leaves out the warm-up, for turns that begin with nothing anyway.
	cold bool
	// rotate lets each round begin with the side after the one that the round
	// before began with, and every second round go backwards, so that neither of
	// two neighbours always has the other, or the same third one, before it.
	rotate bool
}

// plan is short and without patience in a quick run.
func (b *bench) plan(what string, quick, full int, quickTurn, fullTurn time.Duration) plan {
	return plan{what: what, rounds: pick(b, quick, full), turn: pick(b, quickTurn, fullTurn), patient: !b.quick}
}

// interleave lets the sides take turns, A B C A B C, so that what disturbs the
// machine disturbs all of them. A first turn of half the length warms up and is
// not counted. The notes tell how many rounds others disturbed.
func interleave(ctx context.Context, b *bench, p plan, sides ...side) (table, error) {
	p.rounds = cmp.Or(b.rounds, p.rounds)
	for _, s := range sides {
		if p.cold {
			break
		}
		if _, err := s.run(ctx, p.turn/2); err != nil {
			return nil, fmt.Errorf("%s, warming up: %w", s.name, err)
		}
	}
	var kept, noisy []table
	var foreign []float64
	for len(kept) < p.rounds {
		one, share, err := b.round(ctx, p.turn, p.order(sides, len(foreign)))
		if err != nil {
			return nil, err
		}
		if share > foreignLimit {
			noisy = append(noisy, one)
		} else {
			kept = append(kept, one)
		}
		foreign = append(foreign, share)
		b.say("  %s: round %d of %d, others used %.0f %% of the machine", p.what, len(foreign), p.rounds, 100*share)
		if len(foreign) == p.rounds && !p.patient || len(foreign) == 2*p.rounds {
			break
		}
	}
	b.note("%s: %d rounds of %s per side, %d of %d with more than %.0f %% foreign CPU (median %.0f %%)",
		p.what, len(foreign), p.turn, len(noisy), len(foreign), 100*foreignLimit, 100*spreadOf(foreign).Median)
	for _, one := range noisy { // noisy rounds are better than too few
		if len(kept) < p.rounds {
			kept = append(kept, one)
		}
	}
	return merge(kept), nil
}

// order is that of the n-th round.
func (p plan) order(sides []side, n int) []side {
	if !p.rotate {
		return sides
	}
	first := n % len(sides)
	ordered := slices.Concat(sides[first:], sides[:first])
	if n%2 == 1 {
		slices.Reverse(ordered)
	}
	return ordered
}

// round gives every side one turn and tells what share of the machine others used meanwhile.
func (b *bench) round(ctx context.Context, d time.Duration, sides []side) (table, float64, error) {
	one := table{}
	began, machine, family := time.Now(), machineBusy(), familyBusy()
	for _, s := range sides {
		got, err := s.run(ctx, d)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", s.name, err)
		}
		one[s.name] = map[string][]float64{}
		for number, v := range got {
			one[s.name][number] = []float64{v}
		}
	}
	foreign := (machineBusy() - machine) - (familyBusy() - family)
	share := max(0, foreign.Seconds()/(time.Since(began).Seconds()*float64(runtime.NumCPU())))
	one[machineSide] = map[string][]float64{"foreign": {share}}
	return one, share, ctx.Err()
}

func merge(rounds []table) table {
	all := table{}
	for _, one := range rounds {
		for name, numbers := range one {
			if all[name] == nil {
				all[name] = map[string][]float64{}
			}
			for number, v := range numbers {
				all[name][number] = append(all[name][number], v...)
			}
		}
	}
	return all
}
