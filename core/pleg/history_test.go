package pleg_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/deltaplane/deltaplane/core/pleg"
)

// history plays a runtime with one pod whose containers live and die, inspections by
// it that are answered late, and its events, which come late, out of order or not
// at all. What happens next is drawn from a string of bytes.
type history struct {
	t       *testing.T
	choices []byte
	records *pleg.Records

	truth map[string]pleg.State
	born  int
	// open are inspections; an answer is fixed some time before it arrives.
	open []*asking
	news []pleg.Observed
	// past are statuses as events brought them, of any age.
	past [][]pleg.Observed
	// told is what was delivered of each container.
	told map[string][]pleg.Kind
}

type asking struct {
	stamp  pleg.Stamp
	answer []pleg.Observed
	fixed  bool
}

func (h *history) draw(n int) int {
	if len(h.choices) == 0 {
		return 0
	}
	c := int(h.choices[0])
	h.choices = h.choices[1:]
	return c % n
}

func (h *history) snapshot() []pleg.Observed {
	var out []pleg.Observed
	for id, s := range h.truth {
		out = append(out, pleg.Observed{ID: id, State: s})
	}
	return out
}

// live moves a container on, or makes one.
func (h *history) live() {
	var ids []string
	for id := range h.truth {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	i := h.draw(len(ids) + 1)
	if i == len(ids) {
		if len(ids) < 4 {
			h.born++
			id := fmt.Sprint(h.born)
			h.truth[id] = unknown
			h.news = append(h.news, pleg.Observed{ID: id, State: unknown})
		}
		return
	}
	id := ids[i]
	switch h.truth[id] {
	case unknown:
		h.truth[id] = []pleg.State{running, none, exited}[h.draw(3)]
	case running:
		h.truth[id] = exited
	case exited:
		h.truth[id] = none
	}
	h.news = append(h.news, pleg.Observed{ID: id, State: h.truth[id]})
	if h.truth[id] == none {
		delete(h.truth, id)
	}
}

func (h *history) step() {
	switch h.draw(8) {
	case 0, 1:
		h.live()
	case 2:
		h.open = append(h.open, &asking{stamp: h.records.Ask()})
	case 3: // the runtime makes up its answer
		if len(h.open) > 0 {
			if q := h.open[h.draw(len(h.open))]; !q.fixed {
				q.answer, q.fixed = h.snapshot(), true
			}
		}
	case 4: // an answer arrives
		if len(h.open) > 0 {
			i := h.draw(len(h.open))
			q := h.open[i]
			h.open = slices.Delete(h.open, i, i+1)
			if !q.fixed {
				q.answer = h.snapshot()
			}
			h.records.Observe(pod, q.answer, q.stamp)
		}
	case 5: // news arrive, the oldest first or not
		if len(h.news) > 0 {
			i := 0
			if h.draw(4) == 0 {
				i = h.draw(len(h.news))
			}
			n := h.news[i]
			h.news = slices.Delete(h.news, i, i+1)
			h.records.Notice(pod, n.ID, n.State)
		}
	case 6:
		if len(h.news) > 0 && h.draw(4) == 0 {
			h.news = slices.Delete(h.news, 0, 1)
		} else {
			h.past = append(h.past, h.snapshot())
			h.records.Merge(pod, h.past[h.draw(len(h.past))])
		}
	case 7:
		h.deliver(h.draw(3))
	}
}

// deliver takes so many events.
func (h *history) deliver(room int) {
	h.records.Deliver(pod, h.records.Ask(), func(e pleg.Event) bool {
		if room == 0 {
			return false
		}
		room--
		h.told[e.Container] = append(h.told[e.Container], e.Kind)
		return true
	})
}

// play runs the history to its end, stops the world for one list, and checks the events.
func (h *history) play() {
	h.records, h.truth, h.told = pleg.NewRecords(), map[string]pleg.State{}, map[string][]pleg.Kind{}
	for len(h.choices) > 0 {
		h.step()
	}
	h.records.Observe(pod, h.snapshot(), h.records.Ask())
	h.deliver(1 << 20)
	if h.records.Pending(pod) || h.records.Known(pod) != (len(h.truth) > 0) {
		h.t.Errorf("after everything was taken: pending %t, known %t, %d containers live", h.records.Pending(pod), h.records.Known(pod), len(h.truth))
	}
	if h.records.Observe(pod, h.snapshot(), h.records.Ask()) {
		h.t.Error("the records are not what the list said")
	}
	for id, kinds := range h.told {
		if !slices.IsSorted(kinds) || len(slices.Compact(slices.Clone(kinds))) != len(kinds) {
			h.t.Errorf("container %s: told %v, want each at most once and in this order: started, died, removed", id, kinds)
		}
		_, lives := h.truth[id]
		if gone := slices.Contains(kinds, pleg.ContainerRemoved); gone == lives {
			h.t.Errorf("container %s: told %v, lives %t", id, kinds, lives)
		}
		if over := slices.Contains(kinds, pleg.ContainerDied); over != (h.truth[id] == exited || !lives) {
			h.t.Errorf("container %s: told %v, is %v", id, kinds, h.truth[id])
		}
	}
	for id, s := range h.truth {
		if s == running && !slices.Contains(h.told[id], pleg.ContainerStarted) {
			h.t.Errorf("container %s runs, told %v", id, h.told[id])
		}
	}
}

func TestListsAndEventsThatRaceNeverContradictAndLoseNothing(t *testing.T) {
	t.Parallel()
	rounds := 20_000
	if testing.Short() {
		rounds = 1000
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range rounds {
		choices := make([]byte, 20+random.IntN(300))
		for j := range choices {
			choices[j] = byte(random.IntN(256))
		}
		played := choices
		if (&history{t: t, choices: choices}).play(); t.Failed() {
			t.Fatalf("round %d: %v", i, played)
		}
	}
}

func FuzzHistory(f *testing.F) {
	f.Add([]byte{0, 0, 2, 0, 0, 5, 0, 4, 0, 7, 1})
	f.Fuzz(func(t *testing.T, choices []byte) {
		if len(choices) > 2000 {
			t.Skip("a longer history shows nothing new")
		}
		(&history{t: t, choices: choices}).play()
	})
}
