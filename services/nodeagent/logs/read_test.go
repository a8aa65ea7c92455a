package logs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/nodeagent/logs"
)

// second is a record's time.
func second(n int) string {
	return time.Date(2026, 11, 28, 10, 0, n, 500, time.UTC).Format(time.RFC3339Nano)
}

func logOf(t *testing.T, records ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	for i, r := range records {
		records[i] = second(i) + " " + r
	}
	if err := os.WriteFile(path, []byte(strings.Join(records, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// read reads a log as its options say.
func read(ctx context.Context, out io.Writer, path string, o logs.Options) error {
	l, err := logs.Open(path, o)
	if err != nil {
		return err
	}
	return errors.Join(l.Copy(ctx, out), l.Close())
}

func TestWhatIsAskedOfALog(t *testing.T) {
	t.Parallel()
	path := logOf(t, "stdout F one", "stderr F two", "stdout P thr", "stdout F ee", "nonsense", "stdout F four")
	since, err := time.Parse(time.RFC3339Nano, second(3))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		o    logs.Options
		want string
	}{
		{"all", logs.Options{}, "one\ntwo\nthree\nfour\n"},
		{"following what has ended", logs.Options{Follow: true}, "one\ntwo\nthree\nfour\n"},
		{"the last", logs.Options{Tail: new(int64(1))}, "four\n"},
		{"the last three, of which one is no record", logs.Options{Tail: new(int64(3))}, "ee\nfour\n"},
		{"none", logs.Options{Tail: new(int64(0))}, ""},
		{"more than there are", logs.Options{Tail: new(int64(100))}, "one\ntwo\nthree\nfour\n"},
		{"since", logs.Options{Since: since}, "ee\nfour\n"},
		{"one stream", logs.Options{Stream: "stderr"}, "two\n"},
		{"with times", logs.Options{Timestamps: true, Tail: new(int64(4))}, "2026-11-28T10:00:02.000000500Z three\n2026-11-28T10:00:05.000000500Z four\n"},
		{"the first bytes", logs.Options{Limit: 6}, "one\ntw"},
		{"bytes to the end of a line", logs.Options{Limit: 4}, "one\n"},
	} {
		var out strings.Builder
		if err := read(t.Context(), &out, path, row.o); err != nil || out.String() != row.want {
			t.Errorf("%s: %q, %v: want %q", row.name, out.String(), err, row.want)
		}
	}
}

func TestTheLastLinesOfALongLog(t *testing.T) {
	t.Parallel()
	var records []string
	for i := range 3000 {
		records = append(records, fmt.Sprintf("stdout F line %d %s", i, strings.Repeat("x", i%97)))
	}
	path := logOf(t, records...)
	for _, n := range []int64{1, 100, 1000, 2999} {
		var out strings.Builder
		if err := read(t.Context(), &out, path, logs.Options{Tail: &n}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "\n"); int64(got) != n || !strings.HasPrefix(out.String(), fmt.Sprintf("line %d ", 3000-n)) {
			t.Errorf("the last %d: %d lines from %.12q on", n, got, out.String())
		}
	}
}

func TestAFollowedLogGoesOnUntilItsContainerHasEnded(t *testing.T) {
	t.Parallel()
	path := logOf(t, "stdout F one")
	var running atomic.Bool
	running.Store(true)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- read(t.Context(), w, path, logs.Options{Follow: true, Running: running.Load})
		_ = w.Close()
	}()
	await := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
			t.Errorf("%q, %v: want %q", got, err, want)
		}
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(text string) {
		if _, err := f.WriteString(text); err != nil {
			t.Error(err)
		}
	}
	await("one\n")
	write(second(1) + " stdout F tw")
	write("o\n")
	await("two\n")
	write(second(2) + " stdout F three\n")
	running.Store(false)
	await("three\n")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAReadingEndsWithItsReaderAndWithoutItsFile(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := logs.Options{Follow: true, Running: func() bool { return true }}
	if err := read(ctx, io.Discard, logOf(t, "stdout F one"), o); !errors.Is(err, context.Canceled) {
		t.Errorf("Copy() = %v of a reader that went", err)
	}
	if err := read(t.Context(), io.Discard, filepath.Join(t.TempDir(), "none"), logs.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Copy() = %v of no file", err)
	}
}

func TestALogIsReadFromWhereItWasOpened(t *testing.T) {
	t.Parallel()
	path := logOf(t, "stdout F one")
	l, err := logs.Open(path, logs.Options{Tail: new(int64(0))})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(path, []byte(second(0)+" stdout F one\n"+second(1)+" stdout F two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := l.Copy(t.Context(), &out); err != nil || out.String() != "two\n" {
		t.Errorf("%q, %v: want what came after the opening", out.String(), err)
	}
}

func TestALogIsAPlainFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(logOf(t, "stdout F one"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), dir} {
		if l, err := logs.Open(path, logs.Options{}); err == nil {
			t.Errorf("Open(%q) = nil", path)
			_ = l.Close()
		}
	}
}
