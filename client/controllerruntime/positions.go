package controllerruntime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/client"
)

// id names what is followed at a resource version.
func (q request) id(version string) string {
	return strings.Join([]string{q.collection, q.namespace, q.labels, q.fields, fmt.Sprint(q.metadata), version}, "\x00")
}

// mostPositions is how many resource versions a watch can go on at.
const mostPositions = 1000

// keep has watches go on at a resource version. Several changes may have one version, as the
// deletions that a list has found, and a state that is read again has the versions in no order:
// where one watch is behind some of them and another one of the same selection is not, both go on
// at the first position.
func (t *transport) keep(q request, version string, at client.Position) {
	if at == (client.Position{}) || version == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id := q.id(version)
	if kept, again := t.at[id]; again {
		t.at[id] = first(kept, at)
		return
	}
	t.order = append(t.order, id)
	t.at[id] = at
	if len(t.order) > mostPositions {
		delete(t.at, t.order[0])
		t.order = slices.Delete(t.order, 0, 1)
	}
}

func (t *transport) position(q request) (client.Position, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.at[q.id(q.version)]
	return at, ok
}

// lose drops the positions in a collection, whose history is lost: a list at the same resource
// version must not lead back to them.
func (t *transport) lose(collection string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.order = slices.DeleteFunc(t.order, func(id string) bool {
		lost := strings.HasPrefix(id, collection+"\x00")
		if lost {
			delete(t.at, id)
		}
		return lost
	})
}

// first is where two watches go on, of which each has received everything up to its position. It is
// the earlier one, which also names how far the other reader has come. Of two epochs it is the
// later one: the history of the other is lost. A position that is nowhere in the log stays so.
func first(a, b client.Position) client.Position {
	if b.Epoch == 0 || a.Epoch != 0 && (b.Epoch > a.Epoch || b.Epoch == a.Epoch && b.Sequence < a.Sequence) {
		a, b = b, a
	}
	if end := endOf(b); a.Epoch == b.Epoch && beyond(end, endOf(a)) {
		a.ToldEpoch, a.ToldSequence, a.ToldTerm = end.Epoch, end.Sequence, end.Term
	}
	return a
}

// endOf is the last that a reader may have received.
func endOf(p client.Position) client.Position {
	told := client.Position{Epoch: p.ToldEpoch, Sequence: p.ToldSequence, Term: p.ToldTerm}
	if beyond(told, p) {
		return told
	}
	return client.Position{Epoch: p.Epoch, Sequence: p.Sequence, Term: p.Term}
}

func beyond(a, b client.Position) bool {
	return a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Sequence > b.Sequence
}
