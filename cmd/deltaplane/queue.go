package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func newQueue() *cobra.Command {
	cmd := &cobra.Command{Use: "queue", Short: "Look into the work queues and add keys"}
	cmd.AddCommand(newQueueLs(), newQueueDescribe(), newQueueAdd(), newQueueItems())
	group(cmd)
	return cmd
}

// queueCommand gives a command its connection flags and calls do with a client.
func queueCommand(cmd *cobra.Command, do func(*cobra.Command, queuev1.QueueServiceClient, []string) error) *cobra.Command {
	var d dialFlags
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		conn, err := dial(d.queue, d.config)
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx, cancel := contextWithTimeout(cmd, d.timeout)
		defer cancel()
		cmd.SetContext(ctx)
		return do(cmd, queuev1.NewQueueServiceClient(conn), a)
	}
	d.register(cmd.Flags())
	return cmd
}

func newQueueLs() *cobra.Command {
	var output string
	cmd := queueCommand(&cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List queues with what they hold",
		Args:  args(cobra.MaximumNArgs(1)),
	}, func(cmd *cobra.Command, client queuev1.QueueServiceClient, a []string) error {
		answer, err := client.ListQueues(cmd.Context(), &queuev1.ListQueuesRequest{Prefix: strings.Join(a, "")})
		if err != nil {
			return err
		}
		if output == "json" {
			return printMessage(cmd.OutOrStdout(), answer)
		}
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
		fmt.Fprintln(t, queueHeader)
		for _, q := range answer.GetQueues() {
			fmt.Fprintln(t, queueRow(q))
		}
		return t.Flush()
	})
	registerOutput(cmd, &output)
	return cmd
}

const queueHeader = "QUEUE\tREADY\tDELAYED\tPROCESSING\tDIRTY\tDEAD\tOLDEST\tSTATE"

func queueRow(q *queuev1.QueueStatus) string {
	state := "open"
	if q.GetClosed() {
		state = "closed"
	}
	c := q.GetCounts()
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s", q.GetConfig().GetName(), c.GetReady(), c.GetDelayed(),
		c.GetProcessing(), c.GetDirty(), c.GetDead(), shortDuration(q.GetOldestReady().AsDuration()), state)
}

func newQueueDescribe() *cobra.Command {
	var output string
	cmd := queueCommand(&cobra.Command{
		Use:     "describe QUEUE KEY",
		Short:   "Tell everything known about one key: why it waits, who holds it, since when",
		Example: `  deltaplane queue describe dev/job default/hello`,
		Args:    args(cobra.ExactArgs(2)),
	}, func(cmd *cobra.Command, client queuev1.QueueServiceClient, a []string) error {
		answer, err := client.Inspect(cmd.Context(), &queuev1.InspectRequest{Queue: a[0], Key: a[1]})
		if err != nil {
			return err
		}
		if output == "json" {
			return printMessage(cmd.OutOrStdout(), answer)
		}
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		describe(t, answer.GetItem())
		return t.Flush()
	})
	registerOutput(cmd, &output)
	return cmd
}

func describe(t *tabwriter.Writer, item *queuev1.Item) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s:\t%s\n", name, value)
		}
	}
	line("Key", item.GetKey())
	line("State", stateName(item.GetState()))
	line("Holder", item.GetHolder())
	if item.GetToken() != 0 {
		line("Token", fmt.Sprint(item.GetToken()))
	}
	line("Lease ends", moment(item.GetDeadline()))
	line("Added", moment(item.GetAddedAt()))
	line("Ready", moment(item.GetReadyAt()))
	line("Delayed until", moment(item.GetDelayedUntil()))
	line("Priority", fmt.Sprint(item.GetPriority()))
	line("Retries", fmt.Sprint(item.GetNumRequeues()))
	line("Attempt", fmt.Sprint(item.GetAttempt()))
	for _, b := range item.GetBarrier() {
		line("Barrier", fmt.Sprintf("%s at %s (epoch %d)", b.GetCollection(), b.GetRevision().GetResourceVersion(), b.GetRevision().GetEpoch()))
	}
	if n := item.GetStateBytes(); n > 0 {
		line("Saved state", fmt.Sprintf("%d bytes", n))
	}
	if e := item.GetExpectations(); e != nil {
		line("Expected creations", strings.Join(e.GetCreations(), ", "))
		line("Expected deletions", strings.Join(e.GetDeletions(), ", "))
	}
	line("Last reason", item.GetLastReason())
}

func stateName(s queuev1.State) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

func moment(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	when := at.AsTime()
	if until := time.Until(when); until > 0 {
		return when.Local().Format(time.TimeOnly) + " (in " + until.Round(time.Millisecond).String() + ")"
	}
	return when.Local().Format(time.TimeOnly) + " (" + time.Since(when).Round(time.Millisecond).String() + " ago)"
}

func newQueueAdd() *cobra.Command {
	var after time.Duration
	var rateLimited bool
	var priority int32
	cmd := queueCommand(&cobra.Command{
		Use:   "add QUEUE KEY...",
		Short: "Make keys wait: now, later, or as the rate limiter says",
		Example: `  deltaplane queue add dev/job default/hello
  deltaplane queue add dev/job default/hello --after 30s`,
		Args: args(cobra.MinimumNArgs(2)),
	}, func(cmd *cobra.Command, client queuev1.QueueServiceClient, a []string) error {
		var items []*queuev1.AddItem
		for _, key := range a[1:] {
			items = append(items, &queuev1.AddItem{Key: key, Priority: priority})
		}
		results, err := addItems(cmd, client, a[0], items, after, rateLimited)
		if err != nil {
			return err
		}
		for i, r := range results {
			text := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(r.GetStatus().String(), "ADD_STATUS_"), "_", " "))
			if at := moment(r.GetReadyAt()); at != "" {
				text += ", ready at " + at
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", a[1+i], text)
		}
		return nil
	})
	cmd.Flags().DurationVar(&after, "after", 0, "wait this long first")
	cmd.Flags().BoolVar(&rateLimited, "rate-limited", false, "wait as the queue's rate limiter says")
	cmd.Flags().Int32Var(&priority, "priority", 0, "-4 to 3, higher first")
	cmd.MarkFlagsMutuallyExclusive("after", "rate-limited")
	return cmd
}

func addItems(
	cmd *cobra.Command, client queuev1.QueueServiceClient, queue string, items []*queuev1.AddItem, after time.Duration, rateLimited bool,
) ([]*queuev1.AddResult, error) {
	switch {
	case rateLimited:
		answer, err := client.AddRateLimited(cmd.Context(), &queuev1.AddRateLimitedRequest{Queue: queue, Items: items})
		return answer.GetResults(), err
	case cmd.Flags().Changed("after"):
		answer, err := client.AddAfter(cmd.Context(), &queuev1.AddAfterRequest{Queue: queue, Items: items, Delay: durationpb.New(after)})
		return answer.GetResults(), err
	}
	answer, err := client.Add(cmd.Context(), &queuev1.AddRequest{Queue: queue, Items: items})
	return answer.GetResults(), err
}

func newQueueItems() *cobra.Command {
	var output, state string
	var limit int
	cmd := queueCommand(&cobra.Command{
		Use:     "items QUEUE",
		Short:   "List keys by state",
		Example: `  deltaplane queue items dev/job --state processing`,
		Args:    args(cobra.ExactArgs(1)),
	}, func(cmd *cobra.Command, client queuev1.QueueServiceClient, a []string) error {
		wanted, err := parseState(state)
		if err != nil {
			return err
		}
		all := &queuev1.ListItemsResponse{}
		for len(all.Items) < limit {
			answer, err := client.ListItems(cmd.Context(), &queuev1.ListItemsRequest{
				Queue: a[0], State: wanted, PageSize: int32(min(limit-len(all.Items), 1000)), PageToken: all.NextPageToken,
			})
			if err != nil {
				return err
			}
			all.Items = append(all.Items, answer.GetItems()...)
			if all.NextPageToken = answer.GetNextPageToken(); all.NextPageToken == "" {
				break
			}
		}
		if output == "json" {
			return printMessage(cmd.OutOrStdout(), all)
		}
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
		fmt.Fprintln(t, "KEY\tSTATE\tPRIORITY\tRETRIES\tHOLDER\tLEASE ENDS\tREADY\tDELAYED UNTIL")
		for _, i := range all.GetItems() {
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", i.GetKey(), stateName(i.GetState()), i.GetPriority(), i.GetNumRequeues(),
				dash(i.GetHolder()), dash(moment(i.GetDeadline())), dash(moment(i.GetReadyAt())), dash(moment(i.GetDelayedUntil())))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if all.GetNextPageToken() != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "more keys follow; --limit is %d\n", limit)
		}
		return nil
	})
	registerOutput(cmd, &output)
	cmd.Flags().StringVar(&state, "state", "", "only keys in this `state`: "+strings.Join(stateNames(), ", "))
	cmd.Flags().IntVar(&limit, "limit", 100, "show at most this many keys")
	return cmd
}

func stateNames() []string {
	var names []string
	for value := range queuev1.State_name {
		if value != 0 {
			names = append(names, stateName(queuev1.State(value)))
		}
	}
	slices.Sort(names)
	return names
}

func parseState(name string) (queuev1.State, error) {
	if name == "" {
		return queuev1.State_STATE_UNSPECIFIED, nil
	}
	value, ok := queuev1.State_value["STATE_"+strings.ToUpper(name)]
	if !ok || value == 0 {
		return 0, &usageError{fmt.Errorf("--state %q: want one of %s", name, strings.Join(stateNames(), ", "))}
	}
	return queuev1.State(value), nil
}
