package read

import (
	"errors"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// The log may also lose its end while a reader's connection is away for a moment only, so that the
// reader finds an end beyond its position again, made of the next leader's fence. The term record
// behind that says that the term began below what was read.
func TestATermThatBeganBelowWhatWasReadIsFoundOutWhileReading(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		start uint64
		want  error
	}{
		{"behind it", 10, nil},
		{"at it", 9, link.ErrBootstrap},
		{"below it", 5, link.ErrBootstrap},
	} {
		r := &reader{epoch: 1, term: 1, old: 9}
		fence := delta.Record{Kind: delta.KindFence, Epoch: 1, Term: 2}
		term := delta.Record{Kind: delta.KindTerm, Epoch: 1, Term: 2, Start: row.start}
		pos := delta.Position{Epoch: 1, Term: 1, Sequence: 11}
		if err := errors.Join(r.newTerm(t.Context(), &fence, pos), r.newTerm(t.Context(), &term, pos)); !errors.Is(err, row.want) {
			t.Errorf("a term that began %s: %v, want %v", row.name, err, row.want)
		}
	}
}
