package queues

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// NewQueue is the command "queue" and those below it.
func NewQueue() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Look into the work queues, change them and what they hold",
		Long: `Look into the work queues, change them and what they hold.

A key is idle, ready, delayed, processing (held by a worker under a lease), dirty (held, and
added again meanwhile: it runs once more) or dead (kept aside after too many failures).
"ls" shows every queue, "items" the keys of one, "describe" why one key waits and what
happened to it last. A queue that is closed takes no keys; one that is paused hands none
out; "drain" waits until one is worked off; "remove" deletes one with everything in it.`,
	}
	cmd.AddGroup(
		&cobra.Group{ID: "look", Title: "Look:"},
		&cobra.Group{ID: "keys", Title: "Change keys:"},
		&cobra.Group{ID: "queue", Title: "Change a queue:"},
	)
	for id, commands := range map[string][]*cobra.Command{
		"look":  {newQueueLs(), newQueueItems(), newQueueDescribe(), newQueueDead()},
		"keys":  {newQueueAdd(), newQueueRetry(), newQueueForget(), newQueueRelease(), newQueueDelete(), newQueueBackoff()},
		"queue": {newQueueConfigure(), newQueuePause(), newQueueResume(), newQueueClose(), newQueueOpen(), newQueueDrain(), newQueueRemove()},
	} {
		for _, c := range commands {
			c.GroupID = id
			cmd.AddCommand(c)
		}
	}
	cli.Group(cmd)
	return cmd
}

// services are the clients of a queue server's services.
type services struct {
	queuev1.QueueServiceClient
	queuev1.QueueAdminServiceClient
	backoff queuev1.BackoffServiceClient
}

func servicesOf(conn grpc.ClientConnInterface) services {
	return services{queuev1.NewQueueServiceClient(conn), queuev1.NewQueueAdminServiceClient(conn), queuev1.NewBackoffServiceClient(conn)}
}

// queueCommand gives a command its connection flags and calls do with a client.
func queueCommand(cmd *cobra.Command, do func(*cobra.Command, services, []string) error) *cobra.Command {
	return longQueueCommand(cmd, new(time.Duration), do)
}

// longQueueCommand is queueCommand for what may take some time longer.
func longQueueCommand(cmd *cobra.Command, longer *time.Duration, do func(*cobra.Command, services, []string) error) *cobra.Command {
	var d cli.DialFlags
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		for _, name := range a {
			if !utf8.ValidString(name) {
				return &cli.UsageError{Err: fmt.Errorf("%q is not UTF-8", name)}
			}
		}
		conn, err := cli.Dial(d.Queue, d.Config)
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx, cancel := cli.ContextWithTimeout(cmd, d.Timeout+*longer)
		defer cancel()
		cmd.SetContext(ctx)
		client := servicesOf(conn)
		return do(cmd, client, a)
	}
	d.Register(cmd.Flags())
	return cmd
}

func newQueueLs() *cobra.Command {
	var output string
	cmd := queueCommand(&cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List queues with what they hold",
		Args:    cli.Args(cobra.MaximumNArgs(1)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		answer, err := client.ListQueues(cmd.Context(), &queuev1.ListQueuesRequest{Prefix: strings.Join(a, ""), Partial: true})
		if err != nil {
			return err
		}
		if output == "json" {
			return show.PrintMessage(cmd.OutOrStdout(), answer)
		}
		if len(answer.GetQueues()) == 0 {
			text := "no queues found"
			if len(a) > 0 {
				text = fmt.Sprintf("no queue's name begins with %q", a[0])
			}
			fmt.Fprintln(cmd.ErrOrStderr(), text)
			return nil
		}
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
		fmt.Fprintln(t, show.QueueHeader)
		for _, q := range answer.GetQueues() {
			fmt.Fprintln(t, show.QueueRow(q))
		}
		return t.Flush()
	})
	show.RegisterOutput(cmd, &output)
	return cmd
}

func newQueueDescribe() *cobra.Command {
	var output string
	cmd := queueCommand(&cobra.Command{
		Use:     "describe QUEUE KEY",
		Aliases: []string{"inspect"},
		Short:   "Tell everything known about one key: why it waits, who holds it, what happened to it",
		Long: `Tell everything known about one key: why it waits, who holds it, since when, and what
happened to it last, newest first. The history is what the server that answers has seen
since it was started; with several servers each knows its own part.`,
		Example: `  deltaplane queue describe dev/job default/hello
  deltaplane queue inspect dev/job default/hello -o json`,
		Args: cli.Args(cobra.ExactArgs(2)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		answer, err := client.Inspect(cmd.Context(), &queuev1.InspectRequest{Queue: a[0], Key: a[1]})
		if err != nil {
			return err
		}
		if nothingKnown(answer) {
			return unknownKeys(cmd, client, a[0], a[1:])
		}
		if output == "json" {
			return show.PrintMessage(cmd.OutOrStdout(), answer)
		}
		t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		describe(t, answer.GetItem())
		if err := t.Flush(); err != nil {
			return err
		}
		return printHistory(cmd.OutOrStdout(), answer.GetHistory())
	})
	show.RegisterOutput(cmd, &output)
	return cmd
}

func describe(t *tabwriter.Writer, item *queuev1.Item) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s:\t%s\n", name, value)
		}
	}
	line("Key", show.Printable(item.GetKey()))
	line("State", show.StateName(item.GetState()))
	line("Holder", show.Printable(item.GetHolder()))
	line("Lease ends", show.Moment(item.GetDeadline()))
	line("Added", show.Moment(item.GetAddedAt()))
	line("Ready", show.Moment(item.GetReadyAt()))
	line("Delayed until", show.Moment(item.GetDelayedUntil()))
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
		line("Expected creations", show.Printable(strings.Join(e.GetCreations(), ", ")))
		line("Expected deletions", show.Printable(strings.Join(e.GetDeletions(), ", ")))
	}
	line("Last reason", show.Printable(item.GetLastReason()))
	line("Last holders", show.Printable(strings.Join(item.GetLastHolders(), ", ")))
}

// printHistory shows what happened to a key as a table under it.
func printHistory(out io.Writer, history []*queuev1.HistoryEvent) error {
	if len(history) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\nWHEN\tEVENT\tTIMES\tBY\tHELD\tWHY")
	for _, e := range history {
		held, event := "", show.EnumText(e.GetKind().String(), "EVENT_KIND_")
		if e.GetHeld() != nil {
			held = e.GetHeld().AsDuration().Round(time.Millisecond).String()
		}
		if e.GetOutcome() != queuev1.Outcome_OUTCOME_UNSPECIFIED {
			event += ": " + show.EnumText(e.GetOutcome().String(), "OUTCOME_")
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", show.Moment(e.GetTime()), event, e.GetRepeats()+1,
			show.Dash(show.Printable(e.GetSessionId())), show.Dash(held), show.Dash(show.Printable(e.GetReason())))
	}
	return t.Flush()
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
		Args: cli.Args(cobra.MinimumNArgs(2)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		if rateLimited && cmd.Flags().Changed("after") {
			return &cli.UsageError{Err: errors.New("--after and --rate-limited exclude each other")}
		}
		var items []*queuev1.AddItem
		for _, key := range a[1:] {
			items = append(items, &queuev1.AddItem{Key: key, Priority: priority})
		}
		results, err := addItems(cmd, client, a[0], items, after, rateLimited)
		if err != nil {
			return err
		}
		for i, r := range results {
			text := show.EnumText(r.GetStatus().String(), "ADD_STATUS_")
			if at := show.Moment(r.GetReadyAt()); at != "" {
				text += ", ready at " + at
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", show.Printable(a[1+i]), text)
		}
		return nil
	})
	cmd.Flags().DurationVar(&after, "after", 0, "wait this long first")
	cmd.Flags().BoolVar(&rateLimited, "rate-limited", false, "wait as the queue's rate limiter says")
	cmd.Flags().Int32Var(&priority, "priority", 0, "-4 to 3, higher first")
	return cmd
}

func addItems(
	cmd *cobra.Command, client services, queue string, items []*queuev1.AddItem, after time.Duration, rateLimited bool,
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
	var state string
	cmd := itemsCommand(&cobra.Command{
		Use:   "items QUEUE",
		Short: "List keys by state",
		Long: `List the keys of a queue, page by page. A key that changes its state meanwhile may be missed
or seen twice.`,
		Example: `  deltaplane queue items dev/job --state processing
  deltaplane queue items dev/job --state dead --limit 0 -o json`,
		Args: cli.Args(cobra.ExactArgs(1)),
	}, func() (queuev1.State, error) { return parseState(state) })
	registerState(cmd, &state, "only keys in this `state`: "+strings.Join(stateNames(), ", "))
	return cmd
}

func newQueueDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "Look at keys that are kept aside after too many failures",
	}
	cmd.AddCommand(itemsCommand(&cobra.Command{
		Use:     "ls QUEUE",
		Aliases: []string{"list"},
		Short:   "List dead keys with the reason each gave last",
		Long: `List dead keys with the reason each gave last. "queue retry" has them run again, "queue
delete" forgets them.`,
		Example: `  deltaplane queue dead ls dev/job
  deltaplane queue retry dev/job --state dead`,
		Args: cli.Args(cobra.ExactArgs(1)),
	}, func() (queuev1.State, error) { return queuev1.State_STATE_DEAD, nil }))
	cli.Group(cmd)
	return cmd
}

// itemsCommand lists keys in a state.
func itemsCommand(cmd *cobra.Command, state func() (queuev1.State, error)) *cobra.Command {
	var output, token string
	var limit int
	cmd = queueCommand(cmd, func(cmd *cobra.Command, client services, a []string) error {
		wanted, err := state()
		if err != nil {
			return err
		}
		if limit < 0 {
			return &cli.UsageError{Err: fmt.Errorf("--limit %d is negative", limit)}
		}
		all := &queuev1.ListItemsResponse{NextPageToken: token}
		for limit == 0 || len(all.Items) < limit {
			size := 1000
			if limit > 0 {
				size = min(limit-len(all.Items), size)
			}
			answer, err := client.ListItems(cmd.Context(), &queuev1.ListItemsRequest{
				Queue: a[0], State: wanted, PageSize: int32(size), PageToken: all.NextPageToken, Partial: true,
			})
			if err != nil {
				return err
			}
			all.Items = append(all.Items, answer.GetItems()...)
			if p := answer.GetUnreachable(); len(p) > 0 {
				all.Unreachable = append(all.Unreachable, p...)
				fmt.Fprintf(cmd.ErrOrStderr(), "keys of partitions %v are missing: they cannot be reached\n", p)
			}
			if all.NextPageToken = answer.GetNextPageToken(); all.NextPageToken == "" {
				break
			}
		}
		if output == "json" {
			return show.PrintMessage(cmd.OutOrStdout(), all)
		}
		if err := printItems(cmd.OutOrStdout(), all.GetItems(), wanted); err != nil {
			return err
		}
		if next := all.GetNextPageToken(); next != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "more keys follow: --page-token %s (or --limit 0 for all)\n", next)
		}
		return nil
	})
	show.RegisterOutput(cmd, &output)
	cmd.Flags().IntVar(&limit, "limit", 100, "show at most this many keys, 0 for all")
	cmd.Flags().StringVar(&token, "page-token", "", "go on where another list ended")
	return cmd
}

func printItems(out io.Writer, items []*queuev1.Item, state queuev1.State) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if state == queuev1.State_STATE_DEAD {
		fmt.Fprintln(t, "KEY\tRETRIES\tADDED\tREASON")
		for _, i := range items {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", show.Printable(i.GetKey()), i.GetNumRequeues(), show.Dash(show.Moment(i.GetAddedAt())), show.Dash(show.Printable(i.GetLastReason())))
		}
		return t.Flush()
	}
	fmt.Fprintln(t, "KEY\tSTATE\tPRIORITY\tRETRIES\tHOLDER\tLEASE ENDS\tREADY\tDELAYED UNTIL")
	for _, i := range items {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", show.Printable(i.GetKey()), show.StateName(i.GetState()), i.GetPriority(), i.GetNumRequeues(),
			show.Dash(show.Printable(i.GetHolder())), show.Dash(show.Moment(i.GetDeadline())), show.Dash(show.Moment(i.GetReadyAt())), show.Dash(show.Moment(i.GetDelayedUntil())))
	}
	return t.Flush()
}

// registerState adds --state with its completion.
func registerState(cmd *cobra.Command, state *string, usage string) {
	cmd.Flags().StringVar(state, "state", "", usage)
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames(), cobra.ShellCompDirectiveNoFileComp))
}

func stateNames() []string {
	var names []string
	for value := range queuev1.State_name {
		if value != 0 {
			names = append(names, show.StateName(queuev1.State(value)))
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
		return 0, &cli.UsageError{Err: fmt.Errorf("--state %q: want one of %s", name, strings.Join(stateNames(), ", "))}
	}
	return queuev1.State(value), nil
}
