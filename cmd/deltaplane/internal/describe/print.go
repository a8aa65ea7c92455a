package describe

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
)

// print is the answer for people.
func (a *Answer) print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s:\t%s\n", name, value)
		}
	}
	line("Name", show.Printable(a.Name))
	line("Namespace", show.Printable(a.Namespace))
	line("Kind", show.Printable(a.Kind+", "+a.APIVersion))
	pairs(t, "Labels", a.Labels)
	pairs(t, "Annotations", a.Annotations)
	line("Created", ago(a.Created))
	line("Deletion", ago(a.Deleted))
	line("Owner", show.Printable(strings.Join(a.Owners, ", ")))
	line("Finalizers", show.Printable(strings.Join(a.Finalizers, ", ")))
	for _, c := range a.Columns {
		line(show.Printable(c.Name), show.Printable(c.Text))
	}
	lines(t, 0, a.Summary)
	if err := t.Flush(); err != nil {
		return err
	}
	lines(t, 0, a.Fields)
	if len(a.Conditions) > 0 {
		fmt.Fprintln(t, "\nCONDITION\tSTATUS\tREASON\tSINCE\tMESSAGE")
	}
	for _, c := range a.Conditions {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", show.Printable(c.Type), show.Printable(c.Status), show.Printable(show.Dash(c.Reason)), show.Dash(ago(c.Since)), show.Printable(c.Message))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	inspect.PrintEvents(t, a.Events, a.NoEvents)
	if err := t.Flush(); err != nil {
		return err
	}
	return a.known(out)
}

// known prints what is known of the object here.
func (a *Answer) known(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nCollection:\t%s, %s\n", a.Collection, a.Index.State)
	fmt.Fprintf(t, "Version:\t%s, in an index at revision %s of epoch %d", a.RV, show.Dash(a.Index.Revision), a.Index.Epoch)
	if a.Index.Lag > 0 {
		fmt.Fprintf(t, ", %d records behind", a.Index.Lag)
	}
	fmt.Fprintf(t, "\nObserved:\t%s\n", show.Dash(ago(a.Index.Heard)))
	switch {
	case a.NoQueues != "":
		fmt.Fprintf(t, "Queues:\tnot known: %s\n", show.Printable(a.NoQueues))
	case len(a.Queues) == 0 && len(a.Silent) > 0:
		fmt.Fprintln(t, "Queues:\tnone that answered knows a key of it")
	case len(a.Queues) == 0:
		fmt.Fprintln(t, "Queues:\tnone knows a key of it")
	}
	for _, s := range a.Silent {
		fmt.Fprintf(t, "Not known:\tthe %s did not answer: %s\n", s.Part, show.Printable(s.Why))
	}
	if a.Unasked > 0 {
		fmt.Fprintf(t, "Not asked:\t%d more queues\n", a.Unasked)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(a.Queues) > 0 {
		fmt.Fprintln(t, "\nQUEUE\tKEY\tSTATE\tCAUSE\tWAITS FOR")
	}
	for _, q := range a.Queues {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", q.Queue, show.Printable(q.Key), q.State, q.Cause, show.Printable(q.Sentence))
	}
	return t.Flush()
}

// pairs are labels and the like, one a line.
func pairs(t io.Writer, name string, all map[string]string) {
	for i, k := range slices.Sorted(maps.Keys(all)) {
		if i > 0 {
			name = ""
		} else {
			name += ":"
		}
		fmt.Fprintf(t, "%s\t%s\n", name, show.Printable(k+"="+all[k]))
	}
}

// lines are fields, those below each further to the right. A text of several lines stands below.
func lines(t io.Writer, depth int, all []Field) {
	indent := strings.Repeat("  ", depth)
	for _, f := range all {
		text := strings.TrimSuffix(f.Text, "\n")
		if depth == 0 && len(f.Below) > 0 {
			fmt.Fprintf(t, "%s:\n", show.Printable(f.Name))
			lines(t, depth+1, f.Below)
			continue
		}
		if strings.Contains(text, "\n") {
			fmt.Fprintf(t, "%s%s:\n", indent, show.Printable(f.Name))
			for l := range strings.SplitSeq(text, "\n") {
				fmt.Fprintf(t, "%s  %s\n", indent, show.Printable(l))
			}
			continue
		}
		fmt.Fprintf(t, "%s%s:\t%s\n", indent, show.Printable(f.Name), show.Printable(text))
		lines(t, depth+1, f.Below)
	}
}

// ago is a time and how far away it is; empty of none.
func ago(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return show.Moment(timestamppb.New(at.Truncate(time.Millisecond)))
}
