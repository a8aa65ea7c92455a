package inspect

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

func isReason(err error, reason string) bool { return err != nil && rpc.Reason(err) == reason }

// Print is the answer for people.
func (a *NodeAnswer) Print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, values ...any) {
		fmt.Fprintf(t, "%s:\t%s\n", name, fmt.Sprintf(format, values...))
	}
	line("Name", "%s", a.Name)
	line("Created", "%s", ago(a.Created))
	line("Silence", "%s", a.Silence.text(a.Trouble))
	line("Last heartbeat", "lease %s, status %s (the node's clock)", show.Printable(show.Dash(a.Heartbeat.Lease)), show.Printable(show.Dash(a.Heartbeat.Status)))
	line("Known until", "%s", ago(a.KnownAt))
	line("Zone", "%s", a.Zone.Text())
	if a.Waits {
		line("Taint", "waits for its NoExecute taint, %d in the zone's queue", a.Zone.Waiting)
	}
	line("Pods", "%d", a.Pods)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(t, "\nCONDITION\tSTATUS\tREASON\tSINCE\tHEARTBEAT")
	for _, c := range a.Conditions {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", show.Printable(c.Type), show.Printable(c.Status), show.Printable(show.Dash(c.Reason)), show.Printable(show.Dash(c.LastTransitionTime)), show.Printable(show.Dash(c.LastHeartbeatTime)))
	}
	for _, c := range a.Conditions {
		// Ready is the one condition that is well when it is true.
		if wanted := c.Type == nodelifecycle.Ready; c.Message != "" && (c.Status == nodelifecycle.True) != wanted {
			fmt.Fprintf(t, "%s says: %s\n", show.Printable(c.Type), show.Printable(c.Message))
		}
	}
	if len(a.Taints) > 0 {
		fmt.Fprintln(t, "\nTAINT\tEFFECT\tVALUE\tSINCE")
	}
	for _, x := range a.Taints {
		since := "-"
		if x.TimeAdded != nil {
			since = ago(*x.TimeAdded)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", x.Key, x.Effect, show.Dash(x.Value), since)
	}
	if len(a.Evictions) > 0 {
		fmt.Fprintln(t, "\nEVICTION OF\tDUE\tBECAUSE OF\tQUEUE\tRETRIES")
	}
	for _, e := range a.Evictions {
		state := e.State
		if e.Planned != nil {
			state += " until " + e.Planned.Local().Format(time.TimeOnly)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", e.Pod, ago(e.Due), e.Taint, state, e.Retries)
	}
	return t.Flush()
}

func ago(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return show.Moment(timestamppb.New(at))
}

func (s *SilenceAnswer) text(trouble string) string {
	if s == nil {
		return "not measured: " + cmp.Or(trouble, "no node lifecycle controller has looked at it")
	}
	grace := time.Duration(s.Grace * float64(time.Second))
	text := fmt.Sprintf("%s of a grace of %s", time.Duration(s.Seconds*float64(time.Second)).Round(100*time.Millisecond), grace)
	if s.Over {
		text += ", which is over"
	}
	return text
}

// Text is the zone on one line.
func (z *ZoneAnswer) Text() string {
	name := strings.Trim(z.Region+"/"+z.Name, "/")
	if name == "" {
		name = "(no labels)"
	}
	text := fmt.Sprintf("%s, %s: %d ready, %d not", name, show.Dash(string(z.State)), z.Ready, z.NotReady)
	switch {
	case z.Stopped:
		text += "; every zone is down, nothing is tainted"
	case z.Rate == nil:
		text += "; nobody taints its nodes"
	case *z.Rate == 0:
		text += "; nothing is tainted"
	default:
		text += fmt.Sprintf("; %.3g nodes a second are tainted", *z.Rate)
	}
	return text
}
