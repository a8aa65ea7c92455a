package redis

import "testing"

// DeleteFirst ends a queue as Delete does, and leaves the rest of its partitions.
// It returns what does the rest.
func DeleteFirst(t *testing.T, e *Engine, name string, parts int) (rest func() error) {
	t.Helper()
	all, err := e.stored(t.Context(), name, parts)
	if err != nil {
		t.Fatal(err)
	}
	note := goneNote(all)
	for range 2 { // as when the reply is lost
		if d, err := e.deletePart(t.Context(), name, 0, note, true); err != nil || !d.done {
			t.Fatalf("deleted %+v, %v", d, err)
		}
	}
	return func() error {
		if d, err := e.deletePart(t.Context(), name, 0, note, true); err != nil || d.done {
			t.Errorf("the first partition that was made since: deleted %+v, %v", d, err)
		}
		_, err := e.deleteRest(t.Context(), name, note)
		return err
	}
}
