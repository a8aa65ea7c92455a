package harness

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// A Side is one of the things that take turns.
type Side struct {
	Name string
	// Run works for about as long as it is asked to and returns named numbers.
	Run func(ctx context.Context, d time.Duration) (map[string]float64, error)
}

// Table holds what rounds returned: side, number, one value per round.
type Table map[string]map[string][]float64

// Of are the values of a side's number, one for each round.
func (t Table) Of(side, number string) []float64 { return t[side][number] }

// foreignLimit is the share of the machine that others may use before a round is run again.
const foreignLimit = 0.10

// MachineSide is the side of a table that tells about the machine: "foreign" is
// the share of it that others used.
const MachineSide = "the machine"

// Plan says how sides take turns.
type Plan struct {
	What   string
	Rounds int
	Turn   time.Duration
	// repeatNoisy repeats rounds in which somebody else used more than a tenth of
	// the machine, at most as many again as there are rounds.
	repeatNoisy bool
	// Cold leaves out the warm-up, for turns that begin with nothing anyway.
	Cold bool
	// Rotate lets each round begin with the side after the one that the round
	// before began with, and every second round go backwards, so that neither of
	// two neighbours always has the other, or the same third one, before it.
	Rotate bool
}

// Plan is short and without repeats in a quick run.
func (b *Bench) Plan(what string, quick, full int, quickTurn, fullTurn time.Duration) Plan {
	return Plan{What: what, Rounds: Pick(b, quick, full), Turn: Pick(b, quickTurn, fullTurn), repeatNoisy: !b.Quick}
}

// Interleave lets the sides take turns, A B C A B C, so that what disturbs the
// machine disturbs all of them. A first turn of half the length warms up and is
// not counted. The notes tell how many rounds others disturbed.
func Interleave(ctx context.Context, b *Bench, p Plan, sides ...Side) (Table, error) {
	p.Rounds = cmp.Or(b.Rounds, p.Rounds)
	for _, s := range sides {
		if p.Cold {
			break
		}
		if _, err := s.Run(ctx, p.Turn/2); err != nil {
			return nil, fmt.Errorf("%s, warming up: %w", s.Name, err)
		}
	}
	var kept, noisy []Table
	var foreign []float64
	for len(kept) < p.Rounds {
		one, share, err := b.round(ctx, p.Turn, p.order(sides, len(foreign)))
		if err != nil {
			return nil, err
		}
		if share > foreignLimit {
			noisy = append(noisy, one)
		} else {
			kept = append(kept, one)
		}
		foreign = append(foreign, share)
		b.Say("  %s: round %d of %d, others used %.0f %% of the machine", p.What, len(foreign), p.Rounds, 100*share)
		if len(foreign) == p.Rounds && !p.repeatNoisy || len(foreign) == 2*p.Rounds {
			break
		}
	}
	b.Note("%s: %d rounds of %s per side, %d of %d with more than %.0f %% foreign CPU (median %.0f %%)",
		p.What, len(foreign), p.Turn, len(noisy), len(foreign), 100*foreignLimit, 100*SpreadOf(foreign).Median)
	for _, one := range noisy { // noisy rounds are better than too few
		if len(kept) < p.Rounds {
			kept = append(kept, one)
		}
	}
	return merge(kept), nil
}

// order is that of the n-th round.
func (p Plan) order(sides []Side, n int) []Side {
	if !p.Rotate {
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
func (b *Bench) round(ctx context.Context, d time.Duration, sides []Side) (Table, float64, error) {
	one := Table{}
	began, machine, family := time.Now(), machineBusy(), FamilyBusy()
	for _, s := range sides {
		got, err := s.Run(ctx, d)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", s.Name, err)
		}
		one[s.Name] = map[string][]float64{}
		for number, v := range got {
			one[s.Name][number] = []float64{v}
		}
	}
	foreign := (machineBusy() - machine) - (FamilyBusy() - family)
	share := max(0, foreign.Seconds()/(time.Since(began).Seconds()*float64(runtime.NumCPU())))
	one[MachineSide] = map[string][]float64{"foreign": {share}}
	return one, share, ctx.Err()
}

func merge(rounds []Table) Table {
	all := Table{}
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
