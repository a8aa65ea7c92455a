package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/deltaplane/deltaplane/internal/journal"
)

const format journal.Format = "\xd1Tst"

func body(s string) func([]byte) []byte {
	return func(b []byte) []byte { return append(b, s...) }
}

func create(t *testing.T, o journal.Options, records ...string) (*journal.Log, string) {
	t.Helper()
	o.Format = format
	path := filepath.Join(t.TempDir(), "log")
	l, err := journal.Create(path, o, func(w *journal.Writer) error {
		for _, r := range records {
			if err := w.Append(body(r)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(os.ErrClosed) })
	return l, path
}

func appendAll(t *testing.T, l *journal.Log, records ...string) (place int64) {
	t.Helper()
	for _, r := range records {
		var err error
		if place, err = l.Append(body(r)); err != nil {
			t.Fatal(err)
		}
	}
	return place
}

func read(t *testing.T, path string) (records []string, end journal.End) {
	t.Helper()
	end, err := journal.Read(path, format, func(b []byte) error {
		records = append(records, string(b))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records, end
}

func TestWhatWasAppendedIsReadInOrder(t *testing.T) {
	t.Parallel()
	l, path := create(t, journal.Options{}, "head")
	if err := l.Sync(appendAll(t, l, "a", "b", strings.Repeat("c", 3<<20))); err != nil {
		t.Fatal(err)
	}
	got, end := read(t, path)
	if len(got) != 4 || got[0] != "head" || got[2] != "b" || len(got[3]) != 3<<20 || end.At != end.Size || end.Err() != nil {
		t.Errorf("%d records, %+v", len(got), end)
	}
	if _, err := l.Append(body("")); err == nil {
		t.Error("a record without a body was accepted: it could not be read")
	}
}

func TestATornEndIsNotDamage(t *testing.T) {
	t.Parallel()
	l, path := create(t, journal.Options{}, "head")
	appendAll(t, l, "first")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, "second")
	longer, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tails := map[string][]byte{"zeros": make([]byte, 5000), "marks": bytes.Repeat([]byte("x"+format), 300_000)}
	for cut := len(whole); cut < len(longer); cut++ {
		tails[fmt.Sprint("cut at ", cut)] = longer[len(whole):cut]
	}
	for name, tail := range tails {
		if err := os.WriteFile(path, append(slices.Clone(whole), tail...), 0o600); err != nil {
			t.Fatal(err)
		}
		got, end := read(t, path)
		if !slices.Equal(got, []string{"head", "first"}) || end.At != int64(len(whole)) || end.Damaged || end.Err() != nil {
			t.Errorf("%s: %q, %+v", name, got, end)
		}
	}
}

func TestDamageIsToldFromATornEnd(t *testing.T) {
	t.Parallel()
	for record, at := range map[int]int64{0: 0, 1: 16} {
		l, path := create(t, journal.Options{}, "head", "aaaa")
		appendAll(t, l, "bbbb")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[16*record+13] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, end := read(t, path)
		if len(got) != record || end.At != at || !errors.Is(end.Err(), journal.ErrDamaged) {
			t.Errorf("record %d damaged: %q, %+v", record, got, end)
		}
	}
	// No crash tears the first record: the file got its name when it was whole.
	_, path := create(t, journal.Options{}, "head")
	if err := os.Truncate(path, 14); err != nil {
		t.Fatal(err)
	}
	if _, end := read(t, path); !errors.Is(end.Err(), journal.ErrDamaged) {
		t.Errorf("a torn first record: %+v", end)
	}
}

func TestAFileOfAnotherFormatIsNotRead(t *testing.T) {
	t.Parallel()
	_, path := create(t, journal.Options{}, "head")
	none := func([]byte) error { t.Error("a record was read"); return nil }
	if _, err := journal.Read(path, "\xd1Oth", none); !errors.Is(err, journal.ErrFormat) || !strings.Contains(err.Error(), "Tst") {
		t.Errorf("Read = %v, want ErrFormat with what the file begins with", err)
	}
	for _, text := range []string{"", "{", `{"rv":5}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Read(path, format, none); !errors.Is(err, journal.ErrFormat) || !strings.Contains(err.Error(), path) {
			t.Errorf("Read of %q = %v, want ErrFormat and the path", text, err)
		}
	}
}

func TestAnErrorOfTheReaderNamesTheRecord(t *testing.T) {
	t.Parallel()
	_, path := create(t, journal.Options{}, "head", "next")
	_, err := journal.Read(path, format, func(b []byte) error {
		if string(b) == "next" {
			return os.ErrInvalid
		}
		return nil
	})
	if !errors.Is(err, os.ErrInvalid) || !strings.Contains(err.Error(), "byte 16") {
		t.Errorf("Read = %v, want the error with the record's place", err)
	}
}

// disk is a file that fails as it is instructed to; of a write it takes a half.
type disk struct {
	journal.File
	fail *atomic.Pointer[error]
}

func (d disk) Write(b []byte) (int, error) {
	if err := d.fail.Load(); err != nil {
		n, _ := d.File.Write(b[:len(b)/2])
		return n, *err
	}
	return d.File.Write(b)
}

func (d disk) Sync() error {
	if err := d.fail.Load(); err != nil {
		return *err
	}
	return d.File.Sync()
}

func failing() (journal.Options, *atomic.Pointer[error]) {
	fail := new(atomic.Pointer[error])
	return journal.Options{Wrap: func(f journal.File) journal.File { return disk{f, fail} }}, fail
}

func TestAnAppendThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	o, fail := failing()
	l, path := create(t, o, "head")
	appendAll(t, l, "a")
	fail.Store(new(os.ErrPermission))
	for range 2 {
		if _, err := l.Append(body("lost")); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Append = %v", err)
		}
		if err := l.Check(); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Check = %v", err)
		}
	}
	fail.Store(nil)
	if err := l.Check(); err != nil {
		t.Errorf("Check = %v on a disk that is well again", err)
	}
	appendAll(t, l, "b")
	if got, end := read(t, path); !slices.Equal(got, []string{"head", "a", "b"}) || end.At != end.Size {
		t.Errorf("%q, %+v", got, end)
	}
}

func TestAfterASyncThatFailedNothingIsWritten(t *testing.T) {
	t.Parallel()
	o, fail := failing()
	l, _ := create(t, o, "head")
	place := appendAll(t, l, "a")
	fail.Store(new(os.ErrPermission))
	if err := l.Sync(place); !errors.Is(err, os.ErrPermission) {
		t.Errorf("Sync = %v", err)
	}
	fail.Store(nil)
	if err := l.Sync(place); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a second Sync = %v: what the disk holds is not known", err)
	}
	if _, err := l.Append(body("b")); !errors.Is(err, os.ErrPermission) {
		t.Errorf("Append = %v", err)
	}
}

func TestARewriteKeepsWhatItIsTold(t *testing.T) {
	t.Parallel()
	l, path := create(t, journal.Options{}, "head")
	appendAll(t, l, "dropped")
	var wg sync.WaitGroup
	err := l.Rewrite(func(w *journal.Writer) error {
		w.Drop(l.End())
		first := w.Append(body("new head"))
		kept := appendAll(t, l, "kept 1")
		wg.Go(func() {
			for range 1000 {
				appendAll(t, l, "while it is rewritten")
			}
		})
		return errors.Join(first, w.Keep(kept), w.Append(body("in between")))
	})
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := l.Sync(appendAll(t, l, "last")); err != nil {
		t.Fatal(err)
	}
	got, end := read(t, path)
	if len(got) != 1004 || !slices.Equal(got[:4], []string{"new head", "kept 1", "in between", "while it is rewritten"}) || got[1003] != "last" || end.At != end.Size {
		t.Errorf("%d records %.4q, %+v", len(got), got, end)
	}
}

func TestARewriteThatFailsLeavesTheLog(t *testing.T) {
	t.Parallel()
	o, fail := failing()
	for name, write := range map[string]func(w *journal.Writer) error{
		"its writer":       func(*journal.Writer) error { return os.ErrPermission },
		"the disk":         func(w *journal.Writer) error { fail.Store(new(os.ErrPermission)); return w.Append(body("x")) },
		"an empty record ": func(w *journal.Writer) error { return errors.Join(w.Append(body("")), os.ErrPermission) },
	} {
		l, path := create(t, o, "head")
		appendAll(t, l, "a")
		if err := l.Rewrite(write); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: Rewrite = %v", name, err)
		}
		fail.Store(nil)
		if err := l.Sync(appendAll(t, l, "b")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, _ := read(t, path); !slices.Equal(got, []string{"head", "a", "b"}) {
			t.Errorf("%s: %q", name, got)
		}
		if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the new file is left: %v", name, err)
		}
	}
}

// The old file may come back when the machine dies before the directory is on
// disk: until then nothing more counts as synced, also what the new file has.
func TestNothingIsSyncedBeforeTheDirectoryIs(t *testing.T) {
	t.Parallel()
	var fails error
	dirs := 0
	l, _ := create(t, journal.Options{SyncDir: func(string) error { dirs++; return fails }}, "head")
	place := appendAll(t, l, "a")
	fails = os.ErrPermission
	if err := l.Rewrite(func(w *journal.Writer) error { return w.Append(body("new")) }); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(place); !errors.Is(err, os.ErrPermission) || dirs != 3 {
		t.Errorf("Sync = %v after %d syncs of the directory, want its error and 3", err, dirs)
	}
}

type counted struct {
	journal.File
	syncs *int
}

func (c counted) Sync() error { *c.syncs++; return c.File.Sync() }

// A record that was on disk in the old file is on disk in the new one before
// that replaces it.
func TestARewriteIsAsSafeAsTheFileBefore(t *testing.T) {
	t.Parallel()
	for synced, want := range map[bool]int{false: 1, true: 2} {
		var files []*int
		l, _ := create(t, journal.Options{Wrap: func(f journal.File) journal.File {
			files = append(files, new(int))
			return counted{f, files[len(files)-1]}
		}}, "head")
		err := l.Rewrite(func(w *journal.Writer) error {
			w.Drop(l.End())
			place := appendAll(t, l, "while it is rewritten")
			if synced {
				if err := l.Sync(place); err != nil {
					return err
				}
			}
			return w.Append(body("new"))
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := *files[1]; got != want {
			t.Errorf("synced %t: the new file was synced %d times, want %d", synced, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	var whole []byte
	for _, s := range []string{"head", "a", "bb"} {
		whole, _ = format.Append(whole, body(s))
	}
	f.Add(whole, 20, byte(1))
	f.Add(whole[:len(whole)-1], 0, byte(0))
	f.Add(append(whole, make([]byte, 20)...), len(whole), byte(7))
	f.Fuzz(func(t *testing.T, b []byte, at int, flip byte) {
		if at >= 0 && at < len(b) {
			b[at] ^= flip
		}
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var again []byte
		end, err := journal.Read(path, format, func(r []byte) error {
			again, _ = format.Append(again, body(string(r)))
			return nil
		})
		if err != nil && !errors.Is(err, journal.ErrFormat) {
			t.Fatal(err)
		}
		if int64(len(again)) != end.At || !bytes.Equal(again, b[:end.At]) || end.Damaged && end.At == end.Size {
			t.Fatalf("%x was read as %x, %+v", b, again, end)
		}
	})
}
