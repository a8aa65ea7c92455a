package explain

import (
	"errors"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/explain"
)

// NewWhy is the command "why" and the one below it.
func NewWhy() *cobra.Command {
	cmd := newWhyObject()
	cmd.AddCommand(newWhyQueue())
	return cmd
}

func newWhyQueue() *cobra.Command {
	var p parts
	var output string
	cmd := &cobra.Command{
		Use:   "queue QUEUE KEY",
		Short: "Tell why a key of a queue waits, and what would help",
		Long: `Tell what happened to a key of a queue, what it waits for now and what would help: a delay, a
back-off, a limiter, a pause, a worker, its holder, or a barrier that the index has not reached
and why. Queue, index and reflector are asked at the same time; a part that does not answer
within --timeout is named, and the answer is made of the rest. Events are those that the queue server that
answers has seen since it was started.

Exits 3 when there is no such queue and 4 when the queue service does not answer; what is known
is printed all the same.`,
		Example: `  deltaplane why queue dev/job default/hello
  deltaplane why queue dev/job default/hello -o json`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return p.with(func(parts *explain.Parts) error {
				f, err := parts.Key(cmd.Context(), a[0], a[1])
				if err != nil {
					return err
				}
				answer := why.Explain(f)
				if output == "json" {
					err = show.PrintJSON(cmd.OutOrStdout(), answer)
				} else {
					err = printAnswer(cmd.OutOrStdout(), answer)
				}
				return errors.Join(err, verdict(answer))
			})
		},
	}
	p.register(cmd)
	show.RegisterOutput(cmd, &output)
	return cmd
}

// verdict is what an answer is to the caller's exit code.
func verdict(a *why.Answer) error {
	switch a.Cause {
	case why.QueueUnknown:
		return status.Errorf(codes.NotFound, "there is no queue %s", a.Queue)
	case why.QueueSilent:
		return &cli.UnreachableError{What: "the queue service", Err: errors.New("it did not answer")}
	}
	return nil
}
