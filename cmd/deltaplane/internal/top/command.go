package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/meter"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// mostRows is how many keys a printed table has.
const mostRows = 10

// NewTop is the command "top".
func NewTop() *cobra.Command {
	var d cli.DialFlags
	var output string
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what flows now: rates, lags, queues and the keys that take longest",
		Long: `Show what flows through the pipeline now, once a second: changes and lag of each reflection,
records and lag of each log and its index, what each queue holds, adds and settlements a second
and how long keys waited and were worked on since the last look, the keys that are held longest
and those in back-off after most failures.

In a terminal the screen is refreshed in place. q quits, s sorts (busiest, furthest behind, name),
/ filters by a part of a name: Enter keeps it, Esc drops it. A narrow terminal has fewer columns.

Without a terminal, and with --once, one table is printed, of the second that it takes. With
-o json a document a line is printed every second until it is interrupted, or one with --once.

A part that does not answer within --timeout, or refuses, is named, and the others are shown; --once
exits 4 then, and 5 where parts refuse and the others answer. Adds, settlements and times are those
of the queue servers that answer. Keys are looked for in the ten queues that hold or delay most, 200
of each.`,
		Example: `  deltaplane top
  deltaplane top --once
  deltaplane top -o json | jq -c '.queues[] | {queue, ready, adds_per_second}'`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := connect(&d)
			if err != nil {
				return err
			}
			defer p.close()
			m := meter.Set{}
			look := func(ctx context.Context) *Document { return document(m, p.ask(ctx)) }
			t := terminalOf(cmd.InOrStdin(), cmd.OutOrStdout())
			if t != nil && !once && output != "json" {
				return t.untilHangup(cmd.Context(), look)
			}
			return printed(cmd.Context(), cmd.OutOrStdout(), look, output, once)
		},
	}
	d.Register(cmd.Flags())
	d.Timeout = every
	cmd.Flags().Lookup("timeout").DefValue = every.String()
	show.RegisterOutput(cmd, &output)
	cmd.Flags().BoolVar(&once, "once", false, "print one table or document and end")
	return cmd
}

// printed prints what look finds: a table once, or documents.
func printed(ctx context.Context, out io.Writer, look func(context.Context) *Document, output string, once bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	look(ctx) // rates are of the time between two looks
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		d := look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if output == "json" {
			if err := json.NewEncoder(out).Encode(d); err != nil {
				return err
			}
		} else if err := d.print(out); err != nil {
			return err
		}
		if once || output != "json" {
			return d.verdict()
		}
	}
}

// print prints a document as tables.
func (d *Document) print(out io.Writer) error {
	var b strings.Builder
	for _, note := range d.notes() {
		fmt.Fprintln(&b, note)
	}
	for i, s := range d.sections("", byNames) {
		rows := max(len(s.rows), 1)
		if i >= 3 {
			if s.choose("", byBusy); len(s.rows) == 0 {
				continue
			}
			rows = min(len(s.rows), mostRows)
		}
		if b.Len() > 0 {
			fmt.Fprintln(&b)
		}
		for _, text := range s.lines(0, rows) {
			fmt.Fprintln(&b, text)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// verdict is nil when every part answered.
func (d *Document) verdict() error {
	var faults []error
	for _, s := range d.Silent {
		what := "the " + s.Part + " service at " + s.Address
		switch rpc.Code(s.err) {
		case codes.Unavailable, codes.DeadlineExceeded:
			faults = append(faults, &cli.UnreachableError{What: what, Err: errors.New(s.Why)})
		default:
			faults = append(faults, fmt.Errorf("%s: %w", what, s.err))
		}
	}
	return errors.Join(faults...)
}
