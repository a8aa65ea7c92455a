package adopt

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
)

// lease is that of the queue's keys by default.
const lease = 30 * time.Second

// killed ends one of three replicas with kill -9 while all of them work, and reads from their
// journals what became of the keys that it had.
func killed(ctx context.Context, b *harness.Bench) (err error) {
	n := harness.Pick(b, 300, 1000)
	const name = "kill"
	r, err := newRig(ctx, b, name, plane.PlaneConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.plane.Close()) }()
	if _, err := r.write(ctx, oursName, 1, 0); err != nil {
		return err
	}
	ours, err := r.operators(ctx, 3, operatorConfig{Name: name, Namespace: oursName, IO: slow, Journal: name}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(ours[1:])) }()
	if _, err := r.write(ctx, oursName, n, 0); err != nil {
		return errors.Join(err, ours[0].Stop())
	}
	err = harness.Await(ctx, time.Minute, "the replica to kill does nothing", func() (bool, error) {
		var h handled
		err := ours[0].Call("handled", strconv.Itoa(r.round), &h)
		return len(h.Delays) > workers, err
	})
	if err = errors.Join(err, ours[0].Kill()); err != nil {
		return err
	}
	at := time.Now().UnixNano()
	journals := make([][]entry, len(ours))
	var back time.Duration
	lost := 0
	err = harness.Await(ctx, 2*lease, "the queue was not worked off", func() (bool, error) {
		for i := range ours {
			if journals[i], err = readJournal(b.PathIn(name + "-" + strconv.Itoa(i))); err != nil {
				return false, err
			}
		}
		back, lost = after(journals, strconv.Itoa(r.round), at, n)
		return lost == 0, nil
	})
	if err != nil && lost == 0 {
		return err
	}
	b.Note("kill: one of 3 replicas with %d workers is killed while %d keys are worked off, each for %v; lease %v", workers, n, slow, lease)
	b.Add(harness.Alone("kill -9 of a replica: until its keys are handled again", "s", []float64{back.Seconds()}, harness.AtMost("ours", (lease+500*time.Millisecond).Seconds())))
	b.Add(harness.Alone("kill -9 of a replica: keys lost", "", []float64{float64(lost)}, harness.AtMost("ours", 0)))
	b.Add(harness.Alone("kill -9 of a replica: keys handled by two at once", "", []float64{float64(overlaps(journals, at))}, harness.AtMost("ours", 0)))
	return nil
}

func readJournal(name string) (all []entry, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// after tells how long it took until everything that the first replica had begun was begun by
// another one, and how many of n keys nobody has ended in the round.
func after(journals [][]entry, round string, at int64, n int) (back time.Duration, lost int) {
	open, ended := map[string]bool{}, map[string]bool{}
	for i, journal := range journals {
		for _, e := range journal {
			if i == 0 {
				open[e.Key] = !e.End
			}
			if e.End && e.Round == round {
				ended[e.Key] = true
			}
		}
	}
	again := map[string]int64{}
	for _, journal := range journals[1:] {
		for _, e := range journal {
			if open[e.Key] && !e.End && e.At > at && again[e.Key] == 0 {
				again[e.Key] = e.At
			}
		}
	}
	for _, t := range again {
		back = max(back, time.Duration(t-at))
	}
	return back, n - len(ended)
}

// overlaps counts keys that two replicas were at at one time. What the killed replica had begun
// ended with it.
func overlaps(journals [][]entry, at int64) int {
	type span struct{ from, to int64 }
	spans := map[string][]span{}
	for i, journal := range journals {
		open := map[string]int64{}
		for _, e := range journal {
			if e.End {
				spans[e.Key] = append(spans[e.Key], span{open[e.Key], e.At})
				delete(open, e.Key)
			} else {
				open[e.Key] = e.At
			}
		}
		for key, from := range open {
			if i == 0 {
				spans[key] = append(spans[key], span{from, at})
			}
		}
	}
	n := 0
	for _, of := range spans {
		slices.SortFunc(of, func(a, b span) int { return int(a.from - b.from) })
		for i := 1; i < len(of); i++ {
			if of[i].from < of[i-1].to {
				n++
				break
			}
		}
	}
	return n
}
