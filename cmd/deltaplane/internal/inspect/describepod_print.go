package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
)

// print is the answer for people.
func (a *PodAnswer) print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(t, "%s:\t%s\n", name, value) }
	line("Name", a.Name)
	line("Created", ago(a.Created))
	line("Node", show.Dash(a.Node))
	status := slices.DeleteFunc([]string{string(a.Phase), a.Reason, a.Message}, func(s string) bool { return s == "" })
	line("Status", show.Printable(show.Dash(strings.Join(status, ", "))))
	line("IP", show.Dash(strings.Join(a.IPs, ", ")))
	if len(a.Owners) > 0 {
		line("Owner", strings.Join(a.Owners, ", "))
	}
	if !a.Deleted.IsZero() {
		line("Deletion", ago(a.Deleted))
	}
	if !a.Eviction.IsZero() {
		line("Eviction", ago(a.Eviction))
	}
	if !a.Collection.IsZero() {
		line("Collection", ago(a.Collection)+", its node does not exist")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(t, "\nCONTAINER\tIMAGE\tSTATE\tSINCE\tREADY\tRESTARTS\tLAST END")
	for _, c := range a.Containers {
		name := c.Name
		if c.Init {
			name += " (init)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%t\t%d\t%s\n", name, show.Printable(c.Image), c.text(), ago(c.Since), c.Ready, c.Restarts, c.Last.text())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, c := range a.Containers {
		if c.Message != "" {
			fmt.Fprintf(t, "%s says: %s\n", c.Name, show.Printable(strings.TrimSpace(c.Message)))
		}
	}
	fmt.Fprintln(t, "\nCONDITION\tSTATUS\tREASON\tSINCE")
	for _, c := range a.Conditions {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.Type, c.Status, show.Printable(show.Dash(c.Reason)), ago(c.LastTransitionTime.Time))
	}
	PrintEvents(t, a.Events, a.NoEvents)
	return t.Flush()
}

// text is a container's state in a few words.
func (c containerAnswer) text() string {
	text := c.State
	if c.Reason != "" {
		text += ": " + show.Printable(c.Reason)
	}
	if c.ExitCode != nil {
		text += fmt.Sprintf(", exit code %d", *c.ExitCode)
	}
	if !c.RunsAgain.IsZero() {
		if left := time.Until(c.RunsAgain); left > 0 {
			text += fmt.Sprintf(", runs again in %s", left.Round(100*time.Millisecond))
		} else {
			text += ", is to run again"
		}
	}
	return text
}

func (l *lastAnswer) text() string {
	if l == nil {
		return "-"
	}
	return fmt.Sprintf("%s, exit code %d, %s", show.Printable(show.Dash(l.Reason)), l.ExitCode, ago(l.Finished))
}
