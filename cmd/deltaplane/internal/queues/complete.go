package queues

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// completeTimeout bounds what a press of the tab key waits for.
const completeTimeout = time.Second

// completing calls ask with a client of the queue service; without one that answers nothing is
// offered.
func completing(cmd *cobra.Command, ask func(context.Context, services) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	var names []string
	if conn, err := dialAsFlagged(cmd); err == nil {
		defer conn.Close()
		ctx, cancel := cli.ContextWithTimeout(cmd, completeTimeout)
		defer cancel()
		names, _ = ask(ctx, servicesOf(conn))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// dialAsFlagged connects to the queue service as the command itself would. A completion runs before
// the command, so its settings are yet to be applied.
func dialAsFlagged(cmd *cobra.Command) (*cli.CalledConn, error) {
	if err := cmd.Root().PersistentPreRunE(cmd, nil); err != nil {
		return nil, err
	}
	flags := cmd.Flags()
	var d cli.DialFlags
	own := pflag.NewFlagSet("completion", pflag.ContinueOnError)
	d.Register(own)
	var faults []error
	own.VisitAll(func(f *pflag.Flag) {
		if given := flags.Lookup(f.Name); given != nil {
			faults = append(faults, f.Value.Set(given.Value.String()))
		}
	})
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return cli.Dial(d.Queue, d.Config)
}

// completeQueues completes QUEUE from the queues there are.
func completeQueues(cmd *cobra.Command, done []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(done) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completing(cmd, func(ctx context.Context, client services) ([]string, error) {
		answer, err := client.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: prefix})
		var names []string
		for _, q := range answer.GetQueues() {
			names = append(names, q.GetConfig().GetName())
		}
		return names, err
	})
}

// completeKeys completes QUEUE, and then KEY from the first keys in any of the states.
func completeKeys(states ...queuev1.State) cobra.CompletionFunc {
	return func(cmd *cobra.Command, done []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(done) == 0 {
			return completeQueues(cmd, done, prefix)
		}
		return completing(cmd, func(ctx context.Context, client services) ([]string, error) {
			var keys []string
			for _, state := range states {
				answer, err := client.ListItems(ctx, &queuev1.ListItemsRequest{Queue: done[0], State: state, PageSize: keysPerCall})
				if err != nil {
					return keys, err
				}
				for _, i := range answer.GetItems() {
					if strings.HasPrefix(i.GetKey(), prefix) && show.Printable(i.GetKey()) == i.GetKey() && !slices.Contains(done[1:], i.GetKey()) {
						keys = append(keys, i.GetKey()+"\t"+show.StateName(i.GetState()))
					}
				}
			}
			return keys, nil
		})
	}
}
