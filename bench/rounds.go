package main

import (
	"context"
	"fmt"
	"runtime"
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

// interleave lets the sides take turns for d each, A B C A B C, so that what
// disturbs the machine disturbs all of them. A first turn of half the length
// warms up and is not counted. A full run repeats rounds in which somebody else
// used more than a tenth of the machine, at most as many again as asked for;
// the notes tell how many that were.
func interleave(ctx context.Context, b *bench, what string, rounds int, d time.Duration, sides ...side) (table, error) {
	for _, s := range sides {
		if _, err := s.run(ctx, d/2); err != nil {
			return nil, fmt.Errorf("%s, warming up: %w", s.name, err)
		}
	}
	var kept, noisy []table
	var foreign []float64
	for len(kept) < rounds {
		one, share, err := b.round(ctx, d, sides)
		if err != nil {
			return nil, err
		}
		if share > foreignLimit {
			noisy = append(noisy, one)
		} else {
			kept = append(kept, one)
		}
		foreign = append(foreign, share)
		b.say("  %s: round %d of %d, others used %.0f %% of the machine", what, len(foreign), rounds, 100*share)
		if most := pick(b, rounds, 2*rounds); len(foreign) >= most {
			break
		}
	}
	b.note("%s: %d rounds of %s per side, %d of %d with more than %.0f %% foreign CPU (median %.0f %%)",
		what, len(foreign), d, len(noisy), len(foreign), 100*foreignLimit, 100*spreadOf(foreign).Median)
	for _, one := range noisy { // noisy rounds are better than too few
		if len(kept) < rounds {
			kept = append(kept, one)
		}
	}
	return merge(kept), nil
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
