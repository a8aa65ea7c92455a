package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// A Family is a set of figures that are run together.
type Family struct {
	Name, About string
	Parts       []Part
}

// A Part of a family measures some figures and adds them to the run.
type Part struct {
	Name string
	Run  func(ctx context.Context, b *Bench) error
}

type options struct {
	Quick, TLS                      bool
	Rounds                          int
	Seed                            uint64
	out, only, Kubeconfig, profiles string
	Queue                           string
}

// Bench is one run of a family. It is for one goroutine.
type Bench struct {
	options
	Dir     string // scratch, removed at the end
	stdout  io.Writer
	stderr  io.Writer
	started time.Time
	Report  report
	turns   int // that have been profiled
	Memory  atHand
}

// Pick is the one of two values that suits the length of the run.
func Pick[T any](b *Bench, quick, full T) T {
	if b.Quick {
		return quick
	}
	return full
}

// Say reports progress.
func (b *Bench) Say(format string, args ...any) {
	fmt.Fprintf(b.stderr, "%6.1fs  %s\n", time.Since(b.started).Seconds(), fmt.Sprintf(format, args...))
}

// LeaveOut notes that something was not measured, and why.
func (b *Bench) LeaveOut(what, why string) {
	b.Report.LeftOut = append(b.Report.LeftOut, what+": "+why)
}

// Note adds a remark to the run: a seed, a count, how a peer was set up.
func (b *Bench) Note(format string, args ...any) {
	b.Report.Notes = append(b.Report.Notes, fmt.Sprintf(format, args...))
}

// Add prints a figure and keeps it.
func (b *Bench) Add(f Figure) {
	if len(b.Report.Figures) == 0 {
		fmt.Fprintln(b.stdout, "figure | ours | beside it | ratio | target | ok")
	}
	f = f.judged()
	b.Report.Figures = append(b.Report.Figures, f)
	fmt.Fprintln(b.stdout, f.line())
}

func (o options) run(ctx context.Context, fam Family, stdout, stderr io.Writer) (err error) {
	b := &Bench{options: o, stdout: stdout, stderr: stderr, started: time.Now()}
	if b.Dir, err = os.MkdirTemp("", "deltaplane-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.Dir)) }()
	b.Report = newReport(fam.Name, o)
	if o.TLS {
		if err := errors.Join(WriteCertificate(b.Dir), os.Setenv(TLSFolder, b.Dir)); err != nil {
			return err
		}
		b.Note("gRPC over TLS 1.3 between all processes, echoes too; NATS and Redis without")
	}
	only := regexp.MustCompile(o.only)
	var failed error
	for _, p := range fam.Parts {
		if !only.MatchString(p.Name) {
			b.LeaveOut(p.Name, "not chosen by --only")
			continue
		}
		b.Say("%s", p.Name)
		if err := p.Run(ctx, b); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.Name, err))
			b.Report.Failed = append(b.Report.Failed, fmt.Sprintf("%s: %v", p.Name, err))
			b.Say("%s failed: %v", p.Name, err) // the other parts still have something to tell
		}
	}
	if n := b.Memory.String(); n != "" {
		b.Note("%s", n)
	}
	b.Report.Seconds = time.Since(b.started).Seconds()
	for _, n := range b.Report.Notes {
		fmt.Fprintln(stdout, "note:", n)
	}
	for _, l := range b.Report.LeftOut {
		fmt.Fprintln(stdout, "left out:", l)
	}
	if o.out != "" {
		text, err := json.MarshalIndent(b.Report, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.out, append(text, '\n'), 0o644); err != nil { //nolint:gosec // results are for everybody
			return err
		}
	}
	for _, f := range b.Report.Figures {
		if !f.OK {
			failed = errors.Join(failed, fmt.Errorf("%w: %s", ErrMissed, f.Name))
		}
	}
	return failed
}

// PathIn is a file in the scratch folder of the run.
func (b *Bench) PathIn(name string) string { return filepath.Join(b.Dir, name) }
