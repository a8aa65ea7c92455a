package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

// A family is a set of figures that are run together.
type family struct {
	name, about string
	parts       []part
}

// A part of a family measures some figures and adds them to the run.
type part struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

type options struct {
	quick                           bool
	rounds                          int
	seed                            uint64
	out, only, kubeconfig, profiles string
	queue                           string
}

// bench is one run of a family. It is for one goroutine.
type bench struct {
	options
	dir     string // scratch, removed at the end
	stdout  io.Writer
	stderr  io.Writer
	started time.Time
	report  report
	turns   int // that have been profiled
	memory  atHand
}

// pick is the one of two values that suits the length of the run.
func pick[T any](b *bench, quick, full T) T {
	if b.quick {
		return quick
	}
	return full
}

// say reports progress.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.stderr, "%6.1fs  %s\n", time.Since(b.started).Seconds(), fmt.Sprintf(format, args...))
}

// leaveOut notes that something was not measured, and why.
func (b *bench) leaveOut(what, why string) {
	b.report.LeftOut = append(b.report.LeftOut, what+": "+why)
}

// note adds a remark to the run: a seed, a count, how a peer was set up.
func (b *bench) note(format string, args ...any) {
	b.report.Notes = append(b.report.Notes, fmt.Sprintf(format, args...))
}

// add prints a figure and keeps it.
func (b *bench) add(f figure) {
	if len(b.report.Figures) == 0 {
		fmt.Fprintln(b.stdout, "figure | ours | beside it | ratio | target | ok")
	}
	f = f.judged()
	b.report.Figures = append(b.report.Figures, f)
	fmt.Fprintln(b.stdout, f.line())
}

func (o options) run(ctx context.Context, fam family, stdout, stderr io.Writer) (err error) {
	b := &bench{options: o, stdout: stdout, stderr: stderr, started: time.Now()}
	if b.dir, err = os.MkdirTemp("", "deltaplane-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.report = newReport(fam.name, o)
	only := regexp.MustCompile(o.only)
	var failed error
	for _, p := range fam.parts {
		if !only.MatchString(p.name) {
			b.leaveOut(p.name, "not chosen by --only")
			continue
		}
		b.say("%s", p.name)
		if err := p.run(ctx, b); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.name, err))
			b.report.Failed = append(b.report.Failed, fmt.Sprintf("%s: %v", p.name, err))
			b.say("%s failed: %v", p.name, err) // the other parts still have something to tell
		}
	}
	if n := b.memory.String(); n != "" {
		b.note("%s", n)
	}
	b.report.Seconds = time.Since(b.started).Seconds()
	for _, n := range b.report.Notes {
		fmt.Fprintln(stdout, "note:", n)
	}
	for _, l := range b.report.LeftOut {
		fmt.Fprintln(stdout, "left out:", l)
	}
	if o.out != "" {
		text, err := json.MarshalIndent(b.report, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.out, append(text, '\n'), 0o644); err != nil { //nolint:gosec // results are for everybody
			return err
		}
	}
	for _, f := range b.report.Figures {
		if !f.OK {
			failed = errors.Join(failed, fmt.Errorf("%w: %s", errMissed, f.Name))
		}
	}
	return failed
}
