package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/ask"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/auth"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/backup"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/change"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/complete"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/describe"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/queues"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/serve"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/top"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/trust"
)

// streams are the process's standard streams, replaced in tests.
type streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// run executes one command line and returns its exit code. It never exits the process.
func run(ctx context.Context, args []string, io streams) int {
	root := newRoot(io)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	err = cli.Advise(cmd, err)
	if err != nil && !cli.Cancelled(err) {
		fmt.Fprintln(io.Err, "deltaplane: "+cli.ListenFlag(cmd.Flags(), err)+cli.Message(err))
	}
	return cli.ExitCode(err)
}

func newRoot(io streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "deltaplane",
		Short: "The Kubernetes informer pipeline as network services",
		Long: `Deltaplane watches a Kubernetes API server once for everybody. Its deltas travel on a
durable log (NATS JetStream), indexers answer queries from memory over gRPC, and a
shared work queue hands each key to one worker at a time.

Try it with nothing installed:

  deltaplane up

Every flag can also be given as an environment variable (DELTAPLANE_ and the flag's name
in capitals, dashes as underscores: --nats-url is DELTAPLANE_NATS_URL) or as a key of the
YAML file named by --config. Flags win over the environment, the environment over the file.
A DELTAPLANE_ variable or a key that is no setting is refused. docs/settings.md has them all.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 a service cannot be
reached or is not ready, 5 refused (conflict, precondition or no permission).`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Version:           cli.BuildVersion(),
		PersistentPreRunE: cli.ApplySettings(os.Environ),
	}
	root.SetIn(io.In)
	root.SetOut(io.Out)
	root.SetErr(io.Err)
	root.SetFlagErrorFunc(cli.UnknownFlag)
	root.PersistentFlags().String("config", "", "YAML `file` of settings; its keys are flag names")
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "ask", Title: "Ask and change:"},
	)
	for _, c := range []*cobra.Command{serve.NewUp(), serve.NewServe(), trust.NewCerts()} {
		c.GroupID = "run"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{
		ask.NewGet(), describe.NewDescribe(), explain.NewWhy(), inspect.NewTraces(), inspect.NewTrace(), inspect.NewLogs(), ask.NewWatch(), inspect.NewReflection(), ask.NewIndex(), queues.NewQueue(), inspect.NewStatus(), top.NewTop(), change.NewApply(), change.NewDelete(), change.NewNode(), change.NewDemo(), backup.NewBackup(), backup.NewRestore(), inspect.NewHealth(), auth.NewWhoAmI(), auth.NewAuth(), auth.NewKubeconfig(),
	} {
		c.GroupID = "ask"
		root.AddCommand(c)
	}
	complete.Attach(root)
	return root
}
