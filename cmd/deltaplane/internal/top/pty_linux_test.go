package top

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal is a terminal of this machine: its two ends.
func openTerminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	t.Cleanup(func() { _ = user.Close() })
	fd := int(user.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	return user, program
}

// modes are those of a terminal.
func modes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func TestARealTerminalHasItsModesBack(t *testing.T) {
	t.Parallel()
	for name, panics := range map[string]bool{"Ctrl-C": false, "a panic": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			user, program := openTerminal(t)
			before := modes(t, program)
			term := terminalOf(program, program)
			if term == nil {
				t.Fatal("it is not taken for a terminal")
			}
			go func() { _, _ = io.Copy(io.Discard, user) }()
			var during unix.Termios
			func() {
				defer func() {
					if p := recover(); (p != nil) != panics {
						t.Errorf("panicked with %v", p)
					}
				}()
				if err := term.live(t.Context(), func(context.Context) *Document {
					if during = modes(t, program); panics {
						panic("here")
					}
					_, _ = user.Write([]byte{ctrlC}) // a byte while the terminal is raw, and no signal
					return &Document{}
				}); err != nil {
					t.Error(err)
				}
			}()
			if after := modes(t, program); after != before || during == before {
				t.Errorf("modes before %v, during %v, after %v", before, during, after)
			}
		})
	}
}

func TestARealTerminalHasItsModesBackAfterAHangup(t *testing.T) {
	t.Parallel()
	user, program := openTerminal(t)
	before := modes(t, program)
	go func() { _, _ = io.Copy(io.Discard, user) }()
	var once sync.Once // a second signal might come when it is awaited no more
	if err := terminalOf(program, program).untilHangup(t.Context(), func(context.Context) *Document {
		once.Do(func() {
			if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
				t.Error(err)
			}
		})
		return &Document{}
	}); err != nil {
		t.Error(err)
	}
	if after := modes(t, program); after != before {
		t.Errorf("modes before %v, after %v", before, after)
	}
}

func TestAPipeIsNoTerminal(t *testing.T) {
	t.Parallel()
	_, program := openTerminal(t)
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	if terminalOf(pipe, program) != nil || terminalOf(program, pipe) != nil {
		t.Error("a pipe is taken for a terminal")
	}
}
