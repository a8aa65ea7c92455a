package ask

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// NewIndex is the command "index" and those below it.
func NewIndex() *cobra.Command {
	cmd := &cobra.Command{Use: "index", Short: "Look at the indexes of a collection, declare and remove them"}
	cmd.AddCommand(newIndexLs(), newIndexValues(), newIndexAdd(), newIndexRemove())
	cli.Group(cmd)
	return cmd
}

func newIndexLs() *cobra.Command {
	var d cli.DialFlags
	var output string
	cmd := &cobra.Command{
		Use:     "ls COLLECTION",
		Aliases: []string{"list"},
		Short:   "List the indexes of a collection",
		Args:    cli.Args(cobra.ExactArgs(1)),
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
			answer, err := index.ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: name})
			if err != nil {
				return err
			}
			if output == "json" {
				return show.PrintMessage(cmd.OutOrStdout(), answer)
			}
			return printIndexers(cmd.OutOrStdout(), answer.GetIndexers())
		},
	}
	d.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	return cmd
}

func newIndexValues() *cobra.Command {
	var d cli.DialFlags
	var output, prefix string
	cmd := &cobra.Command{
		Use:     "values COLLECTION INDEX",
		Short:   "List the values of an index and how many keys each has",
		Example: `  deltaplane index values pods node`,
		Args:    cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			conn, err := cli.Dial(d.Index, d.Config)
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := cli.ContextWithTimeout(cmd, d.Timeout)
			defer cancel()
			name, err := collectionOf(ctx, indexv1.NewIndexServiceClient(conn), a[0])
			if err != nil {
				return err
			}
			values, at, err := client.NewIndex(conn).IndexValues(ctx, name, a[1], prefix, client.ReadOptions{})
			if err != nil {
				return cli.Plain(err)
			}
			all := &indexv1.ListIndexFuncValuesResponse{
				Revision: &deltav1.Revision{Epoch: at.Epoch, ResourceVersion: at.RV}, Upper: &deltav1.Revision{Epoch: at.Upper.Epoch, ResourceVersion: at.Upper.RV},
			}
			for _, v := range values {
				all.Values = append(all.Values, &indexv1.IndexValue{Value: v.Value, Keys: v.Keys})
			}
			if output == "json" {
				return show.PrintMessage(cmd.OutOrStdout(), all)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(t, strings.ToUpper(a[1])+"\tKEYS")
			for _, v := range all.GetValues() {
				fmt.Fprintf(t, "%s\t%d\n", v.GetValue(), v.GetKeys())
			}
			return t.Flush()
		},
	}
	d.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	cmd.Flags().StringVar(&prefix, "prefix", "", "only values that begin with this `text`")
	return cmd
}
