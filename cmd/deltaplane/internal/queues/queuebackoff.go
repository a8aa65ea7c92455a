package queues

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func newQueueBackoff() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backoff",
		Short: "Look at and change back-off entries",
		Long: `Look at and change a queue's back-off entries: delays by id that double with every failure
(client-go's flowcontrol.Backoff). Ids are apart from the queue's keys; how delays grow is
set by "queue configure --backoff-initial" and its like.`,
	}
	cmd.AddCommand(newBackoffGet(), newBackoffNext(), newBackoffReset())
	cli.Group(cmd)
	return cmd
}

func newBackoffGet() *cobra.Command {
	var output string
	cmd := queueCommand(&cobra.Command{
		Use:     "get QUEUE ID...",
		Short:   "Show the delays of ids",
		Example: `  deltaplane queue backoff get dev/kubelet pod-uid/container`,
		Args:    cli.Args(cobra.MinimumNArgs(2)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		answer, err := client.backoff.Get(cmd.Context(), &queuev1.BackoffServiceGetRequest{Queue: a[0], Ids: a[1:]})
		if err != nil {
			return err
		}
		if output == "json" {
			err = show.PrintMessage(cmd.OutOrStdout(), answer)
		} else {
			err = printEntries(cmd.OutOrStdout(), answer.GetEntries())
		}
		return errors.Join(err, noEntries(a[0], answer.GetEntries()))
	})
	show.RegisterOutput(cmd, &output)
	return cmd
}

// noEntries names the ids that have no entry.
func noEntries(queue string, entries []*queuev1.BackoffEntry) error {
	var without []string
	for _, e := range entries {
		if e.GetLastUpdate() == nil {
			without = append(without, fmt.Sprintf("%q", e.GetId()))
		}
	}
	if len(without) == 0 {
		return nil
	}
	return status.Errorf(codes.NotFound, "queue %s has no back-off entry of %s: its next delay is the first", queue, show.Few(without))
}

func newBackoffNext() *cobra.Command {
	var output, event string
	cmd := queueCommand(&cobra.Command{
		Use:   "next QUEUE ID...",
		Short: "Move ids on to their next delay",
		Long: `Move ids on to their next delay: the first one, or twice the last up to the maximum. When the
event lies longer after the last move than an entry lives, it starts over.`,
		Example: `  deltaplane queue backoff next dev/kubelet pod-uid/container --event-time 2026-01-02T15:04:05Z`,
		Args:    cli.Args(cobra.MinimumNArgs(2)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		req := &queuev1.NextRequest{Queue: a[0], Ids: a[1:]}
		if event != "" {
			at, err := time.Parse(time.RFC3339, event)
			if err != nil {
				return &cli.UsageError{Err: fmt.Errorf("--event-time %q: want a time such as 2026-01-02T15:04:05Z", event)}
			}
			req.EventTime = timestamppb.New(at)
		}
		answer, err := client.backoff.Next(cmd.Context(), req)
		if err != nil {
			return err
		}
		if output == "json" {
			return show.PrintMessage(cmd.OutOrStdout(), answer)
		}
		return printEntries(cmd.OutOrStdout(), answer.GetEntries())
	})
	show.RegisterOutput(cmd, &output)
	cmd.Flags().StringVar(&event, "event-time", "", "when what went wrong happened, an RFC 3339 `time` (default: now)")
	return cmd
}

func printEntries(out io.Writer, entries []*queuev1.BackoffEntry) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "ID\tDELAY\tUPDATED")
	for _, e := range entries {
		fmt.Fprintf(t, "%s\t%s\t%s\n", show.Printable(e.GetId()), e.GetBackoff().AsDuration(), show.Dash(show.Moment(e.GetLastUpdate())))
	}
	return t.Flush()
}

func newBackoffReset() *cobra.Command {
	return queueCommand(&cobra.Command{
		Use:   "reset QUEUE ID...",
		Short: "Forget ids: their next delay is the first one",
		Args:  cli.Args(cobra.MinimumNArgs(2)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		_, err := client.backoff.Reset(cmd.Context(), &queuev1.ResetRequest{Queue: a[0], Ids: a[1:]})
		return printEach(cmd.OutOrStdout(), err, a[1:], "reset")
	})
}

func printEach(out io.Writer, err error, names []string, done string) error {
	for i := 0; i < len(names) && err == nil; i++ {
		_, err = fmt.Fprintln(out, show.Printable(names[i]), done)
	}
	return err
}
