package top

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a terminal in memory.
type fake struct {
	terminal
	keys     *io.PipeWriter
	restored int
	mu       sync.Mutex
	shown    strings.Builder // guarded by mu
}

func newFake() *fake {
	f := &fake{}
	in, keys := io.Pipe()
	f.keys = keys
	f.terminal = terminal{
		in: in, out: f, size: func() (int, int, error) { return 80, 24, nil },
		raw: func() (func() error, error) { return func() error { f.restored++; return nil }, nil },
	}
	return f
}

func (f *fake) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown.Write(p)
}

func (f *fake) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.shown.Reset()
	return f.shown.String()
}

func TestTheScreenIsRefreshedInPlaceOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var looks atomic.Int64
		done := make(chan error, 1)
		go func() {
			done <- f.live(t.Context(), func(context.Context) *Document {
				return &Document{Time: start.Add(time.Duration(looks.Add(1)) * time.Second)}
			})
		}()
		synctest.Wait()
		if text := f.take(); looks.Load() != 1 || !strings.HasPrefix(text, begin) || strings.Contains(text, end) {
			t.Errorf("%d looks, and it begins with %q", looks.Load(), text)
		}
		time.Sleep(3*every + every/2)
		synctest.Wait()
		if text := f.take(); looks.Load() != 4 || strings.Count(text, home) != 3 || strings.Count(text, "\n") != 0 {
			t.Errorf("%d looks, and after 3 s it has shown %q", looks.Load(), text)
		}
		_, _ = f.keys.Write([]byte("\x1b[A")) // an arrow
		_, _ = f.keys.Write([]byte("/ä"))
		synctest.Wait()
		if text := f.take(); !strings.Contains(text, "/ä_") {
			t.Errorf("a key does not redraw: %q", text)
		}
		_, _ = f.keys.Write([]byte("\rq"))
		if err := <-done; err != nil || f.restored != 1 || !strings.HasSuffix(f.take(), end) {
			t.Errorf("ended with %v, restored %d times", err, f.restored)
		}
		_ = f.keys.Close()
	})
}

func TestATerminalThatHasNoSizeShowsADocument(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.size = func() (int, int, error) { return 0, 0, nil }
		done := make(chan error, 1)
		go func() { done <- f.live(t.Context(), func(context.Context) *Document { return many() }) }()
		synctest.Wait()
		if text := f.take(); !strings.Contains(text, "dev/queue1") {
			t.Errorf("it shows %q", text)
		}
		_ = f.keys.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTheTerminalIsPutBackHoweverItEnds(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(*fake, context.CancelFunc){
		"Ctrl-C":             func(f *fake, _ context.CancelFunc) { _, _ = f.keys.Write([]byte{ctrlC}) },
		"a signal":           func(_ *fake, stop context.CancelFunc) { stop() },
		"the end of input":   func(f *fake, _ context.CancelFunc) { _ = f.keys.Close() },
		"a look that panics": nil,
		"no size":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if name == "no size" {
					f.size = func() (int, int, error) { return 0, 0, errors.New("no terminal") }
				}
				panicked := make(chan any, 1)
				go func() {
					defer func() { panicked <- recover() }()
					err := f.live(ctx, func(context.Context) *Document {
						if how == nil && name != "no size" {
							panic("here")
						}
						return &Document{}
					})
					if (err != nil) != (name == "no size") {
						t.Errorf("ended with %v", err)
					}
				}()
				synctest.Wait()
				if how != nil {
					how(f, stop)
				}
				if p := <-panicked; (p != nil) != (name == "a look that panics") {
					t.Errorf("panicked with %v", p)
				}
				if f.restored != 1 || !strings.HasSuffix(f.take(), end) {
					t.Errorf("restored %d times", f.restored)
				}
				_ = f.keys.Close()
			})
		})
	}
}
