package explain

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/why"
)

// printAnswer writes an answer for people: the timeline, who did not answer, and the sentence.
func printAnswer(out io.Writer, a *why.Answer) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if len(a.Timeline) > 0 {
		fmt.Fprintln(t, "WHEN\tWHAT\tBY\tDETAIL")
	}
	for _, e := range a.Timeline {
		when := "now"
		if !e.Time.IsZero() {
			when = show.Moment(timestamppb.New(e.Time.Truncate(time.Microsecond)))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", when, e.What, show.Dash(show.Printable(e.By)), show.Dash(show.Printable(e.Detail)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(a.Timeline) > 0 {
		fmt.Fprintln(out)
	}
	for _, s := range a.Silent {
		fmt.Fprintf(out, "The %s did not answer: %s\n", s.Part, show.Printable(s.Why))
	}
	_, err := fmt.Fprintf(out, "%s of %s is %s (%s): %s\n", show.Printable(a.Key), a.Queue, a.State, a.Cause, show.Printable(a.Sentence))
	return err
}
