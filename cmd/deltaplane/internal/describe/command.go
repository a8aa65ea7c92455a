package describe

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
)

// NewDescribe is the command "describe" and those below it.
func NewDescribe() *cobra.Command {
	var q question
	var output string
	cmd := &cobra.Command{
		Use:   "describe KIND [NAMESPACE/]NAME",
		Short: "Tell what an object says of itself, and what is known of it here",
		Long: `Tell what an object says of itself, and what is known of it here: metadata, the useful fields of
its kind, conditions and Events; how current the index is, and the queues that it woke with what
each waits for. The kinds of Kubernetes have a summary of their spec and status, any other kind
its printer columns, where definitions are mirrored, and its fields.

KIND is a name as "deltaplane get" takes it: job, deploy, dev/jobs.v1.batch, widget. "node" and
"pod" have commands of their own, with what the controllers know of them.

Events are the index's where events are mirrored, and else asked of the API server. What cannot be
found out is left out with a word of why. Of secrets no value is shown, only its size.`,
		Example: `  deltaplane describe job hello
  deltaplane describe widget shop/one -o json
  deltaplane describe node node-1
  deltaplane describe pod hello-x7k2p-0`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if namespace, _, has := strings.Cut(a[1], "/"); has && cmd.Flags().Changed("namespace") && namespace != q.namespace {
				return &cli.UsageError{Err: fmt.Errorf("--namespace %s and the name %s mean two namespaces", q.namespace, a[1])}
			}
			ctx, cancel := cli.ContextWithTimeout(cmd, q.Timeout)
			defer cancel()
			answer, err := q.ask(ctx, a[0], a[1])
			if err != nil {
				return err
			}
			if output == "json" {
				return show.PrintJSON(cmd.OutOrStdout(), answer)
			}
			return answer.print(cmd.OutOrStdout())
		},
	}
	q.Register(cmd.Flags())
	q.kube.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	cmd.Flags().StringVarP(&q.namespace, "namespace", "n", "default", "`namespace` of a name that has none")
	cmd.AddCommand(inspect.NewDescribeNode(), inspect.NewDescribePod())
	return cmd
}
