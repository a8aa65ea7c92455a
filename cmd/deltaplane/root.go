package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// streams are the process's standard streams, replaced in tests.
type streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// version is set by the linker in released binaries; otherwise the module's build information is shown.
var version string

// run executes one command line and returns its exit code. It never exits the process.
func run(ctx context.Context, args []string, io streams) int {
	root := newRoot(io)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !cancelled(err) {
		fmt.Fprintln(io.Err, "deltaplane: "+listenFlag(cmd.Flags(), err)+message(err))
	}
	return exitCode(err)
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

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 a service cannot be
reached or is not ready, 5 refused (conflict, precondition or no permission).`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Version:           buildVersion(),
		PersistentPreRunE: applySettings(os.LookupEnv),
	}
	root.SetIn(io.In)
	root.SetOut(io.Out)
	root.SetErr(io.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.PersistentFlags().String("config", "", "YAML `file` of settings; its keys are flag names")
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "ask", Title: "Ask and change:"},
	)
	for _, c := range []*cobra.Command{newUp(), newServe()} {
		c.GroupID = "run"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{
		newGet(), newDescribe(), newLogs(), newWatch(), newReflection(), newIndex(), newQueue(), newStatus(), newApply(), newDelete(), newNode(), newDemo(), newHealth(),
	} {
		c.GroupID = "ask"
		root.AddCommand(c)
	}
	return root
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// args wraps cobra's argument checks so that a wrong number of arguments is a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return &usageError{fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// group makes a command that only holds others show its help, and refuse one it does not hold.
func group(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, a []string) error {
		if len(a) > 0 {
			return &usageError{fmt.Errorf("unknown command %q for %q", a[0], cmd.CommandPath())}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}
