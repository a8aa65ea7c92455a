package memory

import (
	"os"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// A name may be 253 bytes long and full of slashes: as a file it is longer
// than a file system takes.
func TestQueuesWithLongNamesAreLogged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := []string{
		strings.Repeat("a", 253), strings.Repeat("a", 252) + "b", strings.Repeat("a/", 126), strings.Repeat("b/", 60),
		"dev/job", ".", "..",
	}
	e, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range names {
		q, _, err := e.Configure(t.Context(), n, workqueue.Config{})
		if err != nil {
			t.Fatalf("queue %.20q of %d bytes: %v", n, len(n), err)
		}
		apply(t, q, adds(i+1))
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what was restored is written again
		if e, err = New(Config{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		for i, n := range names {
			q, err := e.Open(t.Context(), n)
			if err != nil {
				t.Fatalf("queue %.20q of %d bytes after a restart: %v", n, len(n), err)
			}
			if st, err := q.Partitions()[0].Status(t.Context()); err != nil || st.Counts.Ready != i+1 {
				t.Errorf("queue %.20q of %d bytes has %+v, %v, want %d ready", n, len(n), st.Counts, err, i+1)
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	logs := 0
	for _, f := range files {
		if strings.HasSuffix(f.Name(), logSuffix) {
			logs++
		}
	}
	if logs != len(names) {
		t.Errorf("%d logs, want %d", logs, len(names))
	}
}

func TestAKeyWhoseStateWasEmptiedIsReadBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, q := logged(t, dir, Config{})
	key := apply(t, q, workqueue.Transaction{Ops: adds(1).Ops, Takes: []workqueue.Take{{Holder: "w", Max: 1}}}).Leases[0]
	apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{
		{Kind: workqueue.OpExpect, Key: key.Key, Token: key.Token, More: &workqueue.More{Owner: "u", Creates: []string{"c"}}},
		{Kind: workqueue.OpSave, Key: key.Key, Token: key.Token, More: &workqueue.More{Data: []byte{}}},
	}})
	q.(*queue).rewrite()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	_, q = logged(t, dir, Config{})
	if it := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpInspect, Key: key.Key}}}).Replies[0].Item; it.Expect == nil || it.StateBytes != 0 {
		t.Errorf("%+v, want what it expects and no state", it)
	}
}
