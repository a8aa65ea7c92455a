package informer

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// view is what a handler knows from its notifications: the object of each key.
type view map[string]string

// tell applies a notification, which must fit what is known.
func (v view) tell(n note[string]) error {
	has, known := v[n.key]
	switch {
	case n.kind == added && known:
		return fmt.Errorf("add of %s, of which %s is known", n.key, has)
	case n.kind == updated && !known, n.kind == deleted && !known:
		return fmt.Errorf("%v of %s, of which nothing is known", n.kind, n.key)
	case n.kind == updated && uidOf(n.old) != uidOf(n.obj):
		return fmt.Errorf("update of %s from %s to %s", n.key, n.old, n.obj)
	case n.kind == updated && has != n.old:
		return fmt.Errorf("update of %s from %s, but %s is known", n.key, n.old, has)
	}
	if n.kind == deleted {
		if uidOf(has) != n.uid || uidOf(n.old) != n.uid {
			return fmt.Errorf("deletion of %s (%s), but %s is known", n.uid, n.old, has)
		}
		delete(v, n.key)
	} else {
		v[n.key] = n.obj
	}
	return nil
}

// Objects are "uid.version".
func uidOf(obj string) string { return obj[:2] }

// world makes notifications as an informer does.
type world struct {
	objects view
	last    map[string]string // the UID that a key had last
	uids, n int
}

func (w *world) next(r *rand.Rand, keys int) []note[string] {
	key := fmt.Sprintf("k%d", r.IntN(keys))
	w.n++
	old, there := w.objects[key]
	fresh := func() string {
		w.uids++
		return fmt.Sprintf("%02d.%d", w.uids%100, w.n)
	}
	gone := note[string]{kind: deleted, key: key, old: old, reason: Observed}
	if there {
		gone.uid = uidOf(old)
	}
	switch what := r.IntN(10); {
	case !there:
		obj := fresh()
		if uid := w.last[key]; uid != "" && what < 6 { // comes back into the filter
			obj = fmt.Sprintf("%s.%d", uid, w.n)
		}
		w.objects[key] = obj
		return []note[string]{{kind: added, key: key, uid: uidOf(obj), obj: obj}}
	case what < 2:
		delete(w.objects, key)
		w.last[key] = uidOf(old)
		return []note[string]{gone}
	case what < 3:
		obj := fresh()
		w.objects[key] = obj
		gone.reason = Recreated
		return []note[string]{gone, {kind: added, key: key, uid: uidOf(obj), obj: obj}}
	case what < 5:
		return []note[string]{{kind: updated, key: key, uid: uidOf(old), old: old, obj: old, sync: true}}
	default:
		obj := fmt.Sprintf("%s.%d", uidOf(old), w.n)
		w.objects[key] = obj
		return []note[string]{{kind: updated, key: key, uid: uidOf(old), old: old, obj: obj}}
	}
}

// Random histories with a reader that is slow now and then: while there is room everything is
// delivered as it was, beyond it the buffer is bounded, and its reader ends up knowing what there
// is.
func TestABufferMergesWithoutChangingTheOutcome(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's history
		keys, room := 1+r.IntN(8), 1+r.IntN(20)
		w := &world{objects: view{}, last: map[string]string{}}
		b := &buffer[string]{room: room}
		told, pushed, popped, folds := view{}, 0, 0, 0
		initial := 0
		for k := range r.IntN(keys + 1) {
			key := fmt.Sprintf("k%d", k)
			w.uids++
			obj := fmt.Sprintf("%02d.0", w.uids)
			w.objects[key] = obj
			b.push(note[string]{kind: added, key: key, uid: uidOf(obj), obj: obj, initial: true})
			initial++
			pushed++
		}
		pop := func() bool {
			n, ok := b.pop()
			if !ok {
				return false
			}
			popped++
			if n.initial {
				initial--
			}
			if err := told.tell(n); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			return true
		}
		for range 500 {
			for range r.IntN(4) {
				for _, n := range w.next(r, keys) {
					crowded := b.len-b.initial >= room || b.latest != nil
					f, finished := b.push(n)
					pushed, folds, initial = pushed+1, folds+f, initial-finished
					if f > 0 && !crowded {
						t.Fatalf("seed %d: folded while there was room", seed)
					}
					if most := room + 2*keys; b.len > most+b.initial {
						t.Fatalf("seed %d: %d are kept, want at most %d", seed, b.len, most)
					}
				}
			}
			for range r.IntN(4) {
				pop()
			}
		}
		for pop() {
		}
		if fmt.Sprint(told) != fmt.Sprint(w.objects) {
			t.Fatalf("seed %d: told %v, there is %v", seed, told, w.objects)
		}
		if initial != 0 || b.len != 0 || b.initial != 0 || b.first != nil || b.last != nil {
			t.Fatalf("seed %d: %d initial adds are not accounted for, %d left", seed, initial, b.len)
		}
		if pushed != popped+folds {
			t.Fatalf("seed %d: %d pushed, %d told, %d folded", seed, pushed, popped, folds)
		}
	}
}

func BenchmarkBuffer(b *testing.B) {
	b.ReportAllocs()
	buf := &buffer[string]{room: 1024}
	for b.Loop() {
		buf.push(note[string]{kind: updated, key: "k", old: "a", obj: "b"})
		buf.pop()
	}
}
