package explain

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/internal/explain"
)

func newWhyObject() *cobra.Command {
	var p parts
	var output string
	cmd := &cobra.Command{
		Use:   "why COLLECTION KEY",
		Short: "Tell why an object's keys wait in the queues that it woke, and what would help",
		Long: `Tell why an object's keys wait in every queue that it woke, and what would help. Asked are the
queues of the collection's cluster (all, where COLLECTION names none) for the object's own key and
for those of its owners and its node, at most 200 queues, and shown are those that know such a key.
"why queue" tells of one key.

Queues, index and reflector are asked at the same time; a part that does not answer within
--timeout is named, and the answer is made of the rest: without the index, of the object's own key.
Of queues that do not answer the first is named, and the others are counted.`,
		Example: `  deltaplane why jobs default/hello
  deltaplane why dev/pods.v1 default/hello-0 -o json
  deltaplane why queue dev/job default/hello`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return p.with(func(parts *explain.Parts) error {
				answer, err := parts.Object(cmd.Context(), a[0], a[1])
				if err != nil {
					return err
				}
				if output == "json" {
					return show.PrintJSON(cmd.OutOrStdout(), answer)
				}
				return printObject(cmd.OutOrStdout(), answer)
			})
		},
	}
	p.register(cmd)
	show.RegisterOutput(cmd, &output)
	return cmd
}

func printObject(out io.Writer, o *explain.Object) error {
	state := "is at resource version " + o.RV
	switch {
	case o.Absent:
		state = "is not in the index"
	case o.RV == "":
		state = "is not known: the index did not say"
	}
	fmt.Fprintf(out, "%s %s %s\n", o.Collection, show.Printable(o.Key), state)
	for _, s := range o.Silent {
		fmt.Fprintf(out, "The %s did not answer: %s\n", s.Part, show.Printable(s.Why))
	}
	for _, a := range o.Queues {
		a.Silent = nil // it is said above
		fmt.Fprintf(out, "\n%s\n", a.Queue)
		if err := printAnswer(out, a); err != nil {
			return err
		}
	}
	switch {
	case o.Unasked > 0:
		_, err := fmt.Fprintf(out, "\nAsked were the first %d queues by name, and not %d more; \"deltaplane why queue QUEUE %s\" asks one.\n", explain.MostQueues, o.Unasked, show.Printable(o.Key))
		return err
	case len(o.Queues) > 0:
		return nil
	case len(o.Silent) > 0:
		_, err := fmt.Fprintln(out, "No queue that answered knows a key of it.")
		return err
	}
	_, err := fmt.Fprintln(out, "No queue knows a key of it: nobody was woken, or all that it woke is done and forgotten.")
	return err
}

// Woken explains the keys of queues that an object woke, for those who tell more of the object.
func Woken(ctx context.Context, d cli.DialFlags, collection, key string) (woken *explain.Object, err error) {
	err = (&parts{d}).with(func(p *explain.Parts) error {
		woken, err = p.Object(ctx, collection, key)
		return err
	})
	return woken, err
}
