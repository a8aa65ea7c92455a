package mirror

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/deltaplane/deltaplane/core/store"
)

func object(key, uid string, version uint64) *store.Object {
	return store.NewObject(store.ObjectConfig{Key: key, UID: uid, RV: formatted(version), Epoch: 1, Sequence: version, Payload: []byte("{}")})
}

func change(key string, version uint64) *Event {
	return &Event{Version: version, Namespace: store.Namespace(key), New: object(key, "u", version)}
}

// published is a history with the views that were published on it.
type published struct {
	*History
	views []*View
}

func (p *published) publish(upper uint64, events ...*Event) *View {
	return p.reach(upper, upper, events...)
}

func (p *published) reach(upper, revision uint64, events ...*Event) *View {
	v := &View{Revision: revision, Upper: upper, history: p.History}
	v.next = p.History.publish(events, upper, revision)
	p.views = append(p.views, v)
	return v
}

func versions(events []*Event) (all []uint64) {
	for _, e := range events {
		all = append(all, e.Version)
	}
	return all
}

func TestAReaderBehindAVersionMissesNothingAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's seed
		p := &published{History: newHistory()}
		var all []*Event
		at := uint64(10)
		p.publish(at)
		first := at
		exact := func(version uint64) bool {
			return slices.ContainsFunc(p.views, func(v *View) bool { return v.Upper <= version && version <= v.Revision })
		}
		for range 100 {
			var batch []*Event
			for range rng.IntN(4) {
				at += 1 + rng.Uint64N(3)
				batch = append(batch, change(fmt.Sprintf("n%d/x", rng.IntN(3)), at))
			}
			all = append(all, batch...)
			// Within one state events come in any order.
			rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
			p.publish(at, batch...)
			if rng.IntN(2) == 0 { // nothing happens for a while
				was := at
				at += rng.Uint64N(3)
				p.reach(was, at)
			}
		}
		for range 50 {
			behind := first + rng.Uint64N(at-first+5)
			namespace := []string{"", "n0", "n1"}[rng.IntN(3)]
			r, ok := p.Behind(behind, namespace)
			if ok != exact(behind) {
				t.Fatalf("seed %d: a reader goes on behind %d of %d to %d: %v", seed, behind, first, at, ok)
			}
			if !ok {
				continue
			}
			var got []*Event
			for {
				n := len(got)
				if got, ok = r.Read(got, n+1+rng.IntN(5)); !ok {
					t.Fatalf("seed %d: events are gone", seed)
				}
				if len(got) == n {
					break
				}
			}
			want := slices.DeleteFunc(slices.Clone(all), func(e *Event) bool {
				return e.Version <= behind || namespace != "" && e.Namespace != namespace
			})
			if !slices.Equal(versions(got), versions(want)) {
				t.Fatalf("seed %d: behind %d in %q: %v, want %v", seed, behind, namespace, versions(got), versions(want))
			}
			r.Close()
		}
	}
}

func TestAVersionBeforeTheFirstStateIsNotKnown(t *testing.T) {
	t.Parallel()
	p := &published{History: newHistory()}
	p.publish(10)
	if _, ok := p.Behind(9, ""); ok {
		t.Error("a reader goes on behind a version that was never seen")
	}
	if r, ok := p.Behind(10, ""); !ok {
		t.Error("nothing is known behind the first state")
	} else {
		r.Close()
	}
}

// An object that came and went between two states is in neither, nor in the events.
func TestNobodyGoesOnBetweenTwoStates(t *testing.T) {
	t.Parallel()
	p := &published{History: newHistory()}
	p.reach(10, 12)
	p.publish(20, change("n/x", 15), change("n/y", 20))
	for behind, want := range map[uint64]bool{10: true, 12: true, 13: false, 15: false, 19: false, 20: true, 21: false} {
		r, ok := p.Behind(behind, "")
		if ok != want {
			t.Errorf("behind %d: %v, want %v", behind, ok, want)
		}
		if ok {
			r.Close()
		}
	}
}

// An object that came in the place of another has the version behind its deletion.
func TestADeletionAtTheVersionOfAStateIsReadBehindIt(t *testing.T) {
	t.Parallel()
	p := &published{History: newHistory()}
	p.publish(10)
	p.publish(11, &Event{Version: 10, Namespace: "n", Old: object("n/x", "u", 5)}, change("n/x", 11))
	r, ok := p.Behind(10, "")
	if !ok {
		t.Fatal("nothing is known behind a state")
	}
	defer r.Close()
	if got, _ := r.Read(nil, 10); !slices.Equal(versions(got), []uint64{10, 11}) {
		t.Errorf("the events behind 10 are of %v, want the deletion at 10 and the creation at 11", versions(got))
	}
}

func TestNobodyGoesOnBeforeADeletionThatIsNotKnown(t *testing.T) {
	t.Parallel()
	p := &published{History: newHistory()}
	p.publish(10)
	p.publish(12, &Event{Version: 12, Namespace: "n", Old: object("n/x", "u", 5), Unknown: true})
	p.publish(15, change("n/y", 15))
	for behind, want := range map[uint64]bool{10: false, 12: true, 15: true} {
		r, ok := p.Behind(behind, "")
		if ok != want {
			t.Errorf("behind %d: %v, want %v", behind, ok, want)
		}
		if ok {
			r.Close()
		}
	}
}

func TestAReaderThatIsTooSlowIsNotifiedOfIt(t *testing.T) {
	t.Parallel()
	p := &published{History: newHistory()}
	v := p.publish(1)
	r := p.From(v, "quiet")
	defer r.Close()
	woken := 0
	for i := range uint64(maxEvents) * 3 {
		p.publish(i+2, change("n/x", i+2))
		select {
		case <-r.More: // so that it does not fall behind for having nothing to read
			woken++
			if _, ok := r.Read(nil, 10); !ok {
				t.Fatal("a reader that comes when it is woken has missed events")
			}
		default:
		}
	}
	if woken == 0 {
		t.Fatal("a reader of a quiet namespace is never woken")
	}
	for i := range uint64(maxEvents) * 2 {
		p.publish(maxEvents*4+i, change("n/x", maxEvents*4+i))
	}
	if _, ok := r.Read(nil, 10); ok {
		t.Error("a reader reads on although events are gone")
	}
	if _, ok := p.Behind(5, ""); ok {
		t.Error("a reader goes on behind a version whose events are gone")
	}
}

func TestOnlyReadersOfTheNamespaceAreWoken(t *testing.T) {
	t.Parallel()
	p := &published{History: newHistory()}
	v := p.publish(1)
	all, mine, other := p.From(v, ""), p.From(v, "a"), p.From(v, "b")
	for _, r := range []*Reader{all, mine, other} {
		<-r.More // what is there at first
	}
	p.publish(2, change("a/x", 2))
	for name, tc := range map[string]struct {
		r     *Reader
		woken bool
	}{"all": {all, true}, "its own": {mine, true}, "another": {other, false}} {
		select {
		case <-tc.r.More:
			if !tc.woken {
				t.Errorf("the reader of %s namespaces is woken", name)
			}
		default:
			if tc.woken {
				t.Errorf("the reader of %s namespaces is not woken", name)
			}
		}
		tc.r.Close()
	}
	if len(p.readers) != 0 {
		t.Errorf("readers that are closed are kept: %v", p.readers)
	}
}
