package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// Options say what of a log is read; the zero value is all of it.
type Options struct {
	// Tail is how many records from the end are read; nil is all.
	Tail *int64
	// Since leaves out what is older.
	Since time.Time
	// Stream is stdout or stderr; empty is both.
	Stream string
	// Timestamps begin each line with its time.
	Timestamps bool
	// Limit ends the answer after so many bytes; 0 is none.
	Limit int64
	// Follow goes on, at the log's end, until Running says no; nil is a container that has ended.
	Follow  bool
	Running func() bool
}

// followEvery is how often a log that is followed is looked at.
const followEvery = 200 * time.Millisecond

// errLimit ends a reading at its limit.
var errLimit = errors.New("limit reached")

// Log is a log that is open. Make it with Open, and close it.
type Log struct {
	file *os.File
	o    Options
}

// Open opens a log at the place where reading begins: what is written from now on is part of what
// is read. Only a plain file can be opened, and no link is followed.
func Open(path string, o Options) (*Log, error) {
	// A runtime names the path: a pipe would block, and a link lead anywhere.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	if err := begin(f, o.Tail); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("logs: %w", err)
	}
	return &Log{f, o}, nil
}

func begin(f *os.File, lines *int64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no plain file", f.Name())
	}
	if lines == nil {
		return nil
	}
	at, err := tail(f, *lines)
	if err == nil {
		_, err = f.Seek(at, io.SeekStart)
	}
	return err
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }

// Copy writes what a log holds, until its end, until ctx ends, or as long as it is followed. What
// is no record is left out. Errors are those of the file and of out. It is called once.
func (l *Log) Copy(ctx context.Context, out io.Writer) error {
	o := l.o
	c := copier{Options: o, out: out, left: o.Limit, fresh: true}
	in := bufio.NewReader(l.file)
	var begun []byte // a record that is not whole yet
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		// Asked before the end is looked for: what a container wrote last is not missed.
		more := o.Follow && o.Running != nil && o.Running()
		for {
			raw, err := in.ReadBytes('\n')
			begun = append(begun, raw...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("logs: %w", err)
			}
			if err := c.record(begun[:len(begun)-1]); err != nil {
				return end(err)
			}
			begun = begun[:0]
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if !more {
			return end(c.record(begun))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func end(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// copier writes records as lines.
type copier struct {
	Options
	out   io.Writer
	left  int64 // of the limit
	fresh bool  // a line begins
}

func (c *copier) record(raw []byte) error {
	l, ok := Parse(raw)
	if !ok || l.At.Before(c.Since) || c.Stream != "" && c.Stream != l.Stream {
		return nil
	}
	var line []byte
	if c.Timestamps && c.fresh {
		line = append(l.At.AppendFormat(line, "2006-01-02T15:04:05.000000000Z07:00"), ' ')
	}
	line = append(line, l.Text...)
	if c.fresh = !l.Partial; c.fresh {
		line = append(line, '\n')
	}
	full := c.Limit > 0 && int64(len(line)) >= c.left
	if full {
		line = line[:c.left]
	}
	c.left -= int64(len(line))
	if _, err := c.out.Write(line); err != nil {
		return err
	}
	if full {
		return errLimit
	}
	return nil
}

// tail is where the last lines of a file begin.
func tail(f *os.File, lines int64) (int64, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || lines <= 0 {
		return size, err
	}
	block := make([]byte, 32<<10)
	for at := size; at > 0; {
		n := min(at, int64(len(block)))
		at -= n
		if _, err := f.ReadAt(block[:n], at); err != nil {
			return 0, err
		}
		for part := block[:n]; ; {
			i := bytes.LastIndexByte(part, '\n')
			if i < 0 {
				break
			}
			if at+int64(i) == size-1 { // the end of the last line begins no other
				part = part[:i]
				continue
			}
			if lines--; lines == 0 {
				return at + int64(i) + 1, nil
			}
			part = part[:i]
		}
	}
	return 0, nil
}
