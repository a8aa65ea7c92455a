package consistency

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const pods = "dev/pods.v1"

// bounds are what an answer states of itself.
type bounds struct{ revision, upper int }

func (b bounds) exact() bool { return b.upper <= b.revision }

func (b bounds) String() string { return fmt.Sprintf("%d..%d", b.revision, b.upper) }

type stated interface {
	GetRevision() *deltav1.Revision
	GetUpper() *deltav1.Revision
}

func boundsOf(s stated) (bounds, error) {
	revision, err := strconv.Atoi(s.GetRevision().GetResourceVersion())
	if err != nil {
		return bounds{}, fmt.Errorf("revision: %w", err)
	}
	upper, err := strconv.Atoi(s.GetUpper().GetResourceVersion())
	if err != nil {
		return bounds{}, fmt.Errorf("upper: %w", err)
	}
	return bounds{revision, upper}, nil
}

// shown are objects of an answer: key -> resource version.
type shown map[int]int

func shownBy(objects []*indexv1.Object) (shown, error) {
	out := shown{}
	for _, o := range objects {
		key, ok := keyOf(o.GetKey())
		rv, err := strconv.Atoi(o.GetResourceVersion())
		if !ok || err != nil {
			return nil, fmt.Errorf("object %q at %q", o.GetKey(), o.GetResourceVersion())
		}
		out[key] = rv
	}
	return out, nil
}

// verdicts count what was found, and fail the test for what must not be.
type verdicts struct {
	t   *testing.T
	src *source

	mu      sync.Mutex // guards the rest
	answers map[string]int
	inexact int // answers with an upper bound above their revision, as they say
	wrong   int // answers outside of their bounds
	claimed int // of these, such as claimed to be exact
	refused map[string]int
}

func newVerdicts(t *testing.T, src *source) *verdicts {
	return &verdicts{t: t, src: src, answers: map[string]int{}, refused: map[string]int{}}
}

func (v *verdicts) count() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, k := range v.answers {
		n += k
	}
	return n
}

// note counts an answer. Fault says what is wrong with it, empty for nothing.
func (v *verdicts) note(what string, b bounds, fault string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answers[what]++
	if !b.exact() {
		v.inexact++
	}
	if fault == "" {
		return
	}
	v.wrong++
	if b.exact() {
		v.claimed++
	}
	if v.wrong <= 10 {
		v.t.Errorf("%s of %v: %s", what, b, fault)
	}
}

func (v *verdicts) refuse(why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused[why]++
}

// objects judges an answer that has the objects of a scope that match, with their versions.
func (v *verdicts) objects(got shown, b bounds, scope func(key int) bool, match func(event) bool) string {
	for key := range sourceKeys {
		rv, there := got[key]
		if !scope(key) {
			if there {
				return fmt.Sprintf("%s was not asked for", name(key))
			}
			continue
		}
		ok := false
		states := v.src.states(key, b)
		for _, s := range states {
			has := s.lives && match(s)
			ok = ok || has == there && (!there || s.rv == rv)
		}
		if !ok {
			return fmt.Sprintf("%s at %d (%v), may be %v", name(key), rv, there, states)
		}
	}
	return ""
}

// keys judges an answer that only names them.
func (v *verdicts) keys(got []string, b bounds, match func(event) bool) string {
	has := map[int]bool{}
	for _, text := range got {
		key, ok := keyOf(text)
		if !ok {
			return fmt.Sprintf("key %q", text)
		}
		has[key] = true
	}
	for key := range sourceKeys {
		ok := false
		states := v.src.states(key, b)
		for _, s := range states {
			ok = ok || (s.lives && match(s)) == has[key]
		}
		if !ok {
			return fmt.Sprintf("%s is named: %v, may be %v", name(key), has[key], states)
		}
	}
	return ""
}

// number judges how many objects there are.
func (v *verdicts) number(got int, b bounds, scope func(key int) bool, match func(event) bool) string {
	least, most := 0, 0
	for key := range sourceKeys {
		if !scope(key) {
			continue
		}
		sure, maybe := true, false
		for _, s := range v.src.states(key, b) {
			has := s.lives && match(s)
			sure, maybe = sure && has, maybe || has
		}
		if sure {
			least++
		}
		if maybe {
			most++
		}
	}
	if got < least || got > most {
		return fmt.Sprintf("%d are counted, may be %d to %d", got, least, most)
	}
	return ""
}

func all(int) bool { return true }

func whatever(event) bool { return true }

// older are the keys that a second answer shows as they were before a first.
func (v *verdicts) older(first, second shown, one, two bounds) (n int) {
	for key := range sourceKeys {
		was, had := first[key]
		is, has := second[key]
		if !had {
			was = v.gone(key, one, func(a, b int) bool { return a < b })
		}
		if !has {
			is = v.gone(key, two, func(a, b int) bool { return a > b })
		}
		if is < was {
			n++
		}
	}
	return n
}

// gone is since which version a key may be absent in an answer, the best by better.
func (v *verdicts) gone(key int, b bounds, better func(a, b int) bool) int {
	best := -1
	for _, s := range v.src.states(key, b) {
		if !s.lives && (best < 0 || better(s.rv, best)) {
			best = s.rv
		}
	}
	return best
}
