package ask

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// source is how `index add` learns where values come from.
type source struct {
	label, field, cel string
	owner, controller bool
	kind              string
}

func (s *source) check(flags *pflag.FlagSet) error {
	var given []string
	for _, name := range []string{"label", "field", "cel", "owner-uid"} {
		if flags.Changed(name) {
			given = append(given, "--"+name)
		}
	}
	switch {
	case len(given) != 1:
		return fmt.Errorf("want one of --label, --field, --cel and --owner-uid, have %d", len(given))
	case !s.owner && (s.controller || s.kind != ""):
		return errors.New("--controller and --kind go with --owner-uid")
	}
	return nil
}

func (s *source) definition(name string) *indexv1.IndexerDefinition {
	d := &indexv1.IndexerDefinition{Name: name}
	switch {
	case s.label != "":
		d.Source = &indexv1.IndexerDefinition_Label{Label: s.label}
	case s.field != "":
		d.Source = &indexv1.IndexerDefinition_Field{Field: s.field}
	case s.cel != "":
		d.Source = &indexv1.IndexerDefinition_Cel{Cel: s.cel}
	case s.owner:
		d.Source = &indexv1.IndexerDefinition_OwnerUid{OwnerUid: &indexv1.OwnerSource{ControllerOnly: s.controller, Kind: s.kind}}
	}
	return d
}

func newIndexAdd() *cobra.Command {
	var d cli.DialFlags
	var output string
	var from source
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "add COLLECTION NAME",
		Short: "Declare an index, on every replica and permanently",
		Long: `Declare an index, on every replica and permanently. Declaring the same again changes nothing.

COLLECTION may be */pods.v1, for the pods of every cluster, also of later ones.`,
		Example: `  deltaplane index add pods by-image --field 'spec.containers[].image'
  deltaplane index add pods by-app --label app.kubernetes.io/name
  deltaplane index add '*/pods.v1' by-job --owner-uid --controller --kind Job
  deltaplane index add pods by-zone --cel 'object.?spec.?nodeSelector.?zone'`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := from.check(cmd.Flags()); err != nil {
				return &cli.UsageError{Err: err}
			}
			conn, err := cli.Dial(d.Index, d.Config)
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := cli.ContextWithTimeout(cmd, max(d.Timeout, wait+d.Timeout))
			defer cancel()
			index := indexv1.NewIndexServiceClient(conn)
			name, err := collectionOf(ctx, index, a[0])
			if err != nil {
				return err
			}
			req := &indexv1.AddIndexersRequest{Collection: name, Indexers: []*indexv1.IndexerDefinition{from.definition(a[1])}}
			if wait > 0 {
				req.Wait = durationpb.New(wait)
			}
			answer, err := index.AddIndexers(ctx, req)
			if err != nil {
				return err
			}
			if output == "json" {
				err = show.PrintMessage(cmd.OutOrStdout(), answer)
			} else {
				err = printIndexers(cmd.OutOrStdout(), answer.GetIndexers())
			}
			return errors.Join(err, failedIndexes(answer.GetIndexers()))
		},
	}
	d.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	flags := cmd.Flags()
	flags.StringVar(&from.label, "label", "", "the value of the label of this `name`")
	flags.StringVar(&from.field, "field", "", "the values at a `path`; [] goes through a list, ['a.b/c'] is a key with dots")
	flags.StringVar(&from.cel, "cel", "", "what a CEL `expression` over object returns, a string or a list of strings")
	flags.BoolVar(&from.owner, "owner-uid", false, "the UID of each owner")
	flags.BoolVar(&from.controller, "controller", false, "with --owner-uid: only the controller")
	flags.StringVar(&from.kind, "kind", "", "with --owner-uid: only owners of this `kind`")
	flags.DurationVar(&wait, "wait", 0, "how long to wait until it is built; 0 is the server's default, 3 s")
	return cmd
}

func newIndexRemove() *cobra.Command {
	var d cli.DialFlags
	cmd := &cobra.Command{
		Use:     "remove COLLECTION NAME...",
		Aliases: []string{"rm"},
		Short:   "Take declared indexes away from every replica",
		Example: `  deltaplane index remove pods by-image by-app`,
		Args:    cli.Args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			conn, err := cli.Dial(d.Index, d.Config)
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := cli.ContextWithTimeout(cmd, d.Timeout)
			defer cancel()
			index := indexv1.NewIndexServiceClient(conn)
			name, err := collectionOf(ctx, index, a[0])
			if err != nil {
				return err
			}
			if _, err := index.RemoveIndexers(ctx, &indexv1.RemoveIndexersRequest{Collection: name, Names: a[1:]}); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", strings.Join(a[1:], ", "))
			return nil
		},
	}
	d.Register(cmd.Flags())
	return cmd
}

// failedIndexes names those that were declared and do not work, or took no object and could not
// take some.
func failedIndexes(list []*indexv1.Indexer) error {
	var failed []error
	for _, i := range list {
		none := i.GetState() == indexv1.IndexerState_INDEXER_STATE_READY && i.GetEntries() == 0 && i.GetErrors() > 0
		if none || i.GetState() == indexv1.IndexerState_INDEXER_STATE_FAILED {
			failed = append(failed, status.Errorf(codes.FailedPrecondition,
				"index %s was declared and fails: %s", i.GetName(), cmp.Or(i.GetLastError(), "the index service does not say why")))
		}
	}
	return errors.Join(failed...)
}

// printIndexers prints indexes for people.
func printIndexers(w io.Writer, list []*indexv1.Indexer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "INDEX\tSTATE\tVALUES\tENTRIES\tERRORS\tBYTES\tCOMPLETE FROM\tSOURCE")
	for _, i := range list {
		state := strings.ToLower(strings.TrimPrefix(i.GetState().String(), "INDEXER_STATE_"))
		if i.GetState() == indexv1.IndexerState_INDEXER_STATE_UNSPECIFIED {
			state = "declared" // no cluster has the resource yet
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n", i.GetName(), state, i.GetValues(), i.GetEntries(), i.GetErrors(), i.GetBytes(),
			show.Dash(i.GetCompleteFrom().GetResourceVersion()), i.GetDescription())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, i := range list {
		if i.GetLastError() != "" {
			fmt.Fprintf(w, "\n%s: %s\n", i.GetName(), i.GetLastError())
		}
		if keys := i.GetUnindexedKeys(); len(keys) > 0 {
			text := strings.Join(keys, ", ")
			if more := i.GetErrors() - int64(len(keys)); more > 0 {
				text += fmt.Sprintf(" and %d more", more)
			}
			fmt.Fprintf(w, "%s: not in the index: %s\n", i.GetName(), show.Printable(text))
		}
	}
	return nil
}
