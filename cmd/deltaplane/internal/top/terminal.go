package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// What terminals understand: the sequences that all since the VT100 and xterm share.
const (
	// begin is another screen, without a cursor, on which long lines are cut.
	begin = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	// end is the screen as it was.
	end = "\x1b[?7h\x1b[?25h\x1b[?1049l"

	home       = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
	bold       = "\x1b[1m"
	plain      = "\x1b[0m"
)

// every is the time between two looks.
const every = time.Second

// terminal is one that a command was started in.
type terminal struct {
	in   io.Reader
	out  io.Writer
	size func() (width, height int, err error)
	raw  func() (restore func() error, err error)
}

// terminalOf is the terminal that a command reads from and writes to; nil where either is none.
func terminalOf(in io.Reader, out io.Writer) *terminal {
	i, ok := in.(*os.File)
	o, also := out.(*os.File)
	if !ok || !also || !term.IsTerminal(int(i.Fd())) || !term.IsTerminal(int(o.Fd())) {
		return nil
	}
	return &terminal{
		in: i, out: o,
		size: func() (int, int, error) { return term.GetSize(int(o.Fd())) },
		raw: func() (func() error, error) {
			before, err := term.MakeRaw(int(i.Fd()))
			if err != nil {
				return nil, err
			}
			return func() error { return term.Restore(int(i.Fd()), before) }, nil
		},
	}
}

// live shows what look finds until the user or the context ends it. The terminal is put back as it
// was, also by a panic of look.
func (t *terminal) live(ctx context.Context, look func(context.Context) *Document) (err error) {
	restore, err := t.raw()
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	defer func() {
		_, shown := io.WriteString(t.out, end)
		err = errors.Join(err, shown, restore())
	}()
	if _, err := io.WriteString(t.out, begin); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys, looks := make(chan rune), make(chan found)
	go t.read(ctx, keys)
	go follow(ctx, look, looks)
	var v view
	var d *Document
	for {
		if v.width, v.height, err = t.size(); err != nil {
			return fmt.Errorf("size of the terminal: %w", err)
		}
		if v.width <= 0 || v.height <= 0 {
			v.width, v.height = 80, 24 // a serial line knows none
		}
		if _, err := io.WriteString(t.out, frame(v.screen(d))); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case key, more := <-keys:
			if !more || v.press(key) {
				return nil
			}
		case f := <-looks:
			if f.panicked != nil {
				panic(f.panicked) // here, so that the terminal is put back
			}
			d = f.document
		}
	}
}

// untilHangup is live, which SIGHUP ends too.
func (t *terminal) untilHangup(ctx context.Context, look func(context.Context) *Document) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	return t.live(ctx, look)
}

// found is what a look found, or what it panicked with.
type found struct {
	document *Document
	panicked any
}

// follow looks again and again.
func follow(ctx context.Context, look func(context.Context) *Document, looks chan<- found) {
	var f found
	defer func() {
		if p := recover(); p != nil {
			select {
			case looks <- found{panicked: p}:
			case <-ctx.Done():
			}
		}
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		f.document = look(ctx)
		select {
		case looks <- f:
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// read reads keys. What begins with an escape and goes on is a key that has no meaning here, such
// as an arrow.
func (t *terminal) read(ctx context.Context, keys chan<- rune) {
	defer close(keys)
	buffer := make([]byte, 256)
	for {
		n, err := t.in.Read(buffer)
		for text := buffer[:n]; len(text) > 0; {
			if text[0] == escape && len(text) > 1 {
				break
			}
			key, size := utf8.DecodeRune(text)
			text = text[size:]
			select {
			case keys <- key:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}
